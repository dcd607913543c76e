"""The transformers adapter on real checkpoints (opt-in: torch's CPU build and transformers)."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from gates.exact import CellOptions, gate_cell
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Reply, Task
from kvbench.engines.supervisor import Timeouts, run_once
from kvbench.records import Failure
from tests.peers.arms import NO_TORCH

QUICK = Timeouts(hello=60, prepare=120, run=120, bye=20)
TASK = Task(prompts=[[(i * 37) % 250 for i in range(40)]], generate=16, warmup=2)
installed = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
needs_torch = pytest.mark.skipif(not installed, reason=NO_TORCH)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.families.make import config, write_checkpoint

    return str(write_checkpoint(tmp_path_factory.mktemp("hf"), config("llama")))


def arm(model: str, name: str = "t", **settings: Any) -> Arm:
    return Arm(name=name, engine="transformers", model=model, settings={"threads": 1} | settings)


@pytest.mark.skipif(installed, reason="torch and transformers are installed")
def test_without_the_packages_there_is_one_line(folder: str) -> None:
    found = run_once(arm(folder), TASK, QUICK).outcome
    assert isinstance(found, Failure) and found.kind == "start"


@needs_torch
@pytest.mark.optin
def test_a_run(folder: str) -> None:
    run = run_once(arm(folder), TASK, QUICK)
    assert isinstance(run.outcome, Reply), run
    assert run.outcome.result.tokens == 16 and run.outcome.result.decode_s > 0
    assert run.hello is not None and "torch" in run.hello.version
    assert run.ready is not None and run.ready.effective["dtype"] == "float32"


@needs_torch
@pytest.mark.optin
def test_caches_and_the_reference_decoder_agree_on_tokens(folder: str) -> None:
    options = CellOptions(timeouts=QUICK)
    task = Task(prompts=TASK.prompts, generate=16)
    same = gate_cell(arm(folder, "a"), [arm(folder, "b")], [task], options)
    assert same.outcome == "passed", same.message
    detailed = Task(prompts=TASK.prompts, generate=16, detail=True)
    dynamic, static = (
        run_once(
            arm(folder, cache=cache), Task(prompts=TASK.prompts, generate=16, detail=True), QUICK
        )
        for cache in ("dynamic", "static")
    )
    own = run_once(Arm(name="own", model=folder), detailed, QUICK)
    assert isinstance(own.outcome, Reply) and isinstance(dynamic.outcome, Reply)
    assert isinstance(static.outcome, Reply), static
    assert own.outcome.tokens == dynamic.outcome.tokens == static.outcome.tokens


@needs_torch
@pytest.mark.optin
def test_a_random_model_follows_from_its_seed(folder: str) -> None:
    runs = [
        run_once(arm("", random_config=folder, seed=seed), TASK, QUICK).result for seed in (1, 1, 2)
    ]
    hashes = [run.hashes["logits"] for run in runs if not isinstance(run, Failure)]
    assert len(hashes) == 3 and hashes[0] == hashes[1] != hashes[2]


@needs_torch
@pytest.mark.optin
@pytest.mark.parametrize(
    ("settings", "model", "words"),
    [
        ({"cache": "offloaded"}, None, "GPU"),
        ({"cache": "quantized"}, None, "cache"),
        ({}, "/no/such", "config.json"),
        ({"chache": "static"}, None, "chache"),
    ],
)
def test_what_cannot_run_is_one_line(
    folder: str, settings: dict[str, Any], model: str | None, words: str
) -> None:
    found = run_once(arm(model or folder, **settings), TASK, QUICK).outcome
    assert isinstance(found, Failure) and words in found.message
