"""The OpenAI adapter against llama.cpp's own server (xllamacpp)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gates.exact import CellOptions, gate_cell
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Reply, Task
from kvbench.engines.supervisor import ArmSession, run_once
from kvbench.records import Failure
from tests.peers.arms import QUICK
from tests.peers.servers import running_real

pytestmark = pytest.mark.peer
TASK = Task(prompts=["The quick brown fox", "jumps over the lazy dog"], generate=12, warmup=2)
UNCACHED = {"extra_body": {"cache_prompt": False}}


@pytest.fixture(scope="module")
def real(tiny: str) -> Iterator[str]:
    """URL of a server with a tiny random model."""
    with running_real(tiny, "-np", "2") as url:
        yield url


def arm(url: str, **settings: Any) -> Arm:
    return Arm(name="o", engine="openai", settings={"url": url} | settings)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_streamed_runs_on_the_real_server(real: str, endpoint: str) -> None:
    run = run_once(arm(real, endpoint=endpoint, **UNCACHED), TASK, QUICK)
    assert isinstance(run.outcome, Reply), run
    result = run.outcome.result
    assert result.tokens == 24 and result.decode_s > 0
    assert {"ttft_s", "itl_s", "e2e_s"} <= set(result.metrics)
    assert run.outcome.stops == ["length", "length"]
    assert run.ready is not None and run.ready.version


def test_the_gate_over_the_real_server(real: str) -> None:
    options = CellOptions(timeouts=QUICK)
    same = gate_cell(arm(real, **UNCACHED), [arm(real, **UNCACHED)], [TASK], options)
    assert same.outcome == "passed", same.message
    warm = arm(real, extra_body={"cache_prompt": False, "temperature": 2.0, "seed": 5, "top_k": 0})
    other = gate_cell(arm(real, **UNCACHED), [warm], [TASK], options)
    assert other.outcome == "mismatch"
    check = next(check for check in other.checks if check.outcome == "mismatch")
    assert check.divergence is not None and check.divergence.position is not None


def test_a_prompt_served_from_the_cache_is_noticed(real: str) -> None:
    """The real server caches prompts by default."""
    task = Task(prompts=["a prompt that comes twice " * 3], generate=4, detail=True)
    run_once(arm(real), task, QUICK)
    found = run_once(arm(real), task, QUICK).outcome
    assert isinstance(found, Failure) and found.kind == "reused-prompt", found
    assert isinstance(run_once(arm(real, reuse_declared=True), task, QUICK).outcome, Reply)


def test_timed_runs_carry_a_nonce(real: str) -> None:
    task = Task(prompts=["another prompt that comes twice " * 3], generate=4)
    counts = set()
    with ArmSession(arm(real), QUICK) as session:
        session.prepare()
        for _ in range(40):
            counts.add(session.run(task).result.counters["prompt_tokens"])
    assert len(counts) == 1, "a run with another number of tokens is another task"
