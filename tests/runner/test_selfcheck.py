"""Issue 6, numbers: what ``kvbench selfcheck`` measures, in small; the record has the large one."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task
from kvbench.engines.supervisor import run_once
from kvbench.records import Failure, Result
from runner.selfcheck import check_aa, check_overhead, competing_load, experiment, markdown


def test_the_synthetic_engine_takes_at_least_the_stated_time() -> None:
    task = Task(prompts=[[1], [2]], generate=5, warmup=1)
    arm = Arm(name="s", engine="synthetic", settings={"token_s": 0.01})
    result = run_once(arm, task).result
    assert isinstance(result, Result)
    assert result.tokens == 10 and result.decode_s >= 0.05
    wrong = Arm(name="s", engine="synthetic", settings={"speed": 1})
    failure = run_once(wrong, task).result
    assert isinstance(failure, Failure) and "speed" in failure.message


def test_a_planted_effect_has_the_right_sign(tmp_path: Path) -> None:
    """On what the arms are told: which one a busy machine favours says nothing."""
    (cell,) = experiment(1.0, 2, {}, tmp_path).cells
    a, b = (arm.settings["token_s"] for arm in cell.arms)
    assert a == 2 * b and cell.comparisons[0].arm == "b" and cell.comparisons[0].ratio
    assert all(run.tok_s <= 1 / (a if run.arm == "a" else b) for run in cell.runs)


@pytest.mark.parametrize("duty", [0.0, 0.5])
def test_the_competing_process_is_there_and_gone_again(duty: float) -> None:
    def loads() -> list[int]:
        """Of this test process alone: another one runs beside it."""
        children = psutil.Process().children()
        return [c.pid for c in children if any("process_time" in word for word in c.cmdline())]

    with competing_load(duty):
        assert len(loads()) == (duty > 0)
    assert loads() == []


def test_outcomes_are_counted() -> None:
    told: list[str] = []
    outcome = check_aa(2, 2, 0.0, told.append)
    assert outcome.total == 2 and len(told) == 2
    overhead = check_overhead(8)
    assert "median" in overhead.detail
    assert "| A/A | 2 blocks each" in markdown([outcome, overhead], ["a CPU"])
