"""A workload of conversations becomes a task, and the reference arm has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.engines.conversing import conversation_task
from kvbench.engines.protocol import Prepare, Run, Task
from kvbench.engines.reference import Reference
from kvbench.engines.serve import EngineFailure
from kvbench.errors import UsageError
from kvbench.spec import parse_suite
from runner.tasks import task_of

MODEL = "synthetic:tiny"


def suite(path: Path | None, *, sequences: int = 2, extra: str = "", model: str = MODEL) -> bytes:
    source = f"path = {json.dumps(str(path))}" if path else ""
    return f"""
schema = 1
name = "talk"
baseline = "a"
model = "{model}"
[workload]
kind = "conversations"
sequences = {sequences}
generate = 4
warmup = 1
{source}
{extra}
[[arms]]
name = "a"
engine = "reference"
[[arms]]
name = "b"
engine = "reference"
""".encode()


@pytest.fixture
def spoken(tmp_path: Path) -> Path:
    path = tmp_path / "c.jsonl"
    rows = [{"turns": ["Hi there", "More"]}, {"turns": ["Go on"]}, {"turns": ["x" * 50]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def task(data: bytes) -> Task:
    _, (cell,) = parse_suite(data, "talk.toml")
    return task_of(cell)


def test_the_first_conversations_become_a_task(spoken: Path) -> None:
    made = task(suite(spoken))
    assert len(made.prompts) == 2
    option = made.options["conversation"]
    assert [len(later) for later in option["follow_ups"]] == [1, 0]
    assert conversation_task(made).generate == 4


def test_the_reference_arm_has_them(spoken: Path) -> None:
    arm = Reference()
    arm.prepare(Prepare(model=MODEL, settings={"waits": "stock", "draft": "prompt"}))
    reply = arm.run(Run(id=3, task=task(suite(spoken))))
    assert reply.id == 3
    assert reply.result.counters["turns"] == 3
    assert reply.result.tokens == 12
    assert reply.result.metrics["cached_tokens"] > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sequences": 4}, "has 3 conversations"),
        ({"extra": "prompt_tokens = 8"}, "workload.prompt_tokens allows 8"),
        ({"extra": 'history = "seeded"'}, "start from their own text"),
        ({"model": "none"}, "whose tokens are known"),
    ],
)
def test_what_cannot_be_had_is_refused(spoken: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        task(suite(spoken, **changes))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"conversation": {"stop": [1]}}, "unknown field"),
        ({"conversation": {}, "rate": 1}, "unknown field"),
        ({"conversation": {"follow_ups": [[], []]}}, "2 lists for 1 prompts"),
    ],
)
def test_the_arm_refuses_options_that_it_does_not_know(options: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineFailure, match=words):
        conversation_task(Task(prompts=[[1]], generate=1, options=options))


def test_the_arm_refuses_text_and_forced_tokens() -> None:
    option = {"conversation": {}}
    with pytest.raises(EngineFailure, match="token ids, not text"):
        conversation_task(Task(prompts=["hi"], generate=1, options=option))
    with pytest.raises(EngineFailure, match="cannot be forced"):
        conversation_task(Task(prompts=[[1]], generate=1, teacher=[[1]], options=option))


def test_a_charged_wait_is_a_label_of_the_experiment() -> None:
    from kvbench.spec import load_suite
    from runner.verdict import _charged

    charged, _ = load_suite("sync-elision-windows")
    (label,) = _charged(charged)
    assert label.startswith("MODEL: a stated cost is charged") and "stock 243.7 us" in label
    assert _charged(load_suite("sync-elision")[0]) == []


def test_conversations_are_profiled_call_by_call_s5(spoken: Path) -> None:
    """The origin's table: fewer synchronize calls, every other API call as often."""
    from collections import Counter

    from kvbench.engines.recorder import Request, record

    made = task(suite(spoken))
    calls: dict[str, Counter[str]] = {}
    for waits in ("stock", "elided"):
        request = Request(
            arm=waits,
            model=MODEL,
            settings={"waits": waits, "draft": "layers:1", "resident": True},
            prompts=[list(p) for p in made.prompts if not isinstance(p, str)],
            generate=made.generate,
            warmup=made.warmup,
            answer="",
            options=made.options,
        )
        capture = record(request).capture
        assert capture is not None
        calls[waits] = Counter(call.name for call in capture.api)
    stock, elided = calls["stock"], calls["elided"]
    fewer = {name for name in stock if elided[name] != stock[name]}
    assert fewer == {"cudaStreamSynchronize"}
    assert elided["cudaStreamSynchronize"] <= 0.342 * stock["cudaStreamSynchronize"]
