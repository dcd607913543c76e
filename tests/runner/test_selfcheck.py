"""Issue 6, numbers: what ``kvbench selfcheck`` measures, in small; the record has the large one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from kvbench.analysis.estimate import Floor
from kvbench.cli import main
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task
from kvbench.engines.supervisor import run_once
from kvbench.errors import UsageError
from kvbench.records import Failure, Result
from runner.selfcheck import (
    append,
    check_aa,
    check_effect,
    check_overhead,
    check_repeat,
    competing_load,
    experiment,
    markdown,
    within_reach,
)


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
    (cell,) = experiment(1.0, 2, tmp_path).cells
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


def test_outcomes_are_counted(tmp_path: Path) -> None:
    told: list[str] = []
    outcome = check_aa(2, 2, 0.0, told.append)
    assert outcome.total == 2 and len(told) == 2
    overhead = check_overhead(8)
    assert "median" in overhead.detail
    record = markdown([outcome, overhead], ["a CPU"], "now")
    assert record.startswith("## now\n") and "| A/A | 2 blocks each" in record
    records = tmp_path / "records.md"
    for number in range(2):
        append(record.replace("now", f"time {number}"), records)
    text = records.read_text()
    assert text.count("# The bench against itself") == 1
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## time 0",
        "## time 1",
    ]


def test_a_file_that_cannot_take_the_record_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.selfcheck.experiment", None)
    odd = tmp_path / "odd.md"
    odd.write_bytes(b"\xff")
    for path, said in ((tmp_path / "no" / "x.md", "cannot be written"), (odd, "cannot be read")):
        assert main(["selfcheck", "overhead", "--append", str(path)]) == 2
        assert said in capsys.readouterr().err
    assert odd.read_bytes() == b"\xff"


def test_an_effect_within_reach_is_planted_and_one_out_of_reach_refused() -> None:
    told: list[str] = []
    quiet = Floor(0.002**2, 23)
    assert within_reach(quiet, 0.9) == (0.015, 4)
    assert check_effect(1, quiet, told.append).total == check_repeat(1, quiet, told.append).total
    with pytest.raises(UsageError, match=r"too noisy for 8 blocks to find even 100%"):
        within_reach(Floor(2.0, 23), 0.9)


@pytest.mark.parametrize(
    ("verdicts", "met"), [({"FASTER": 2, "INCONCLUSIVE": 38}, True), ({"FASTER": 3}, False)]
)
def test_an_aim_that_is_not_met_ends_in_1(
    verdicts: dict[str, int], met: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn = iter([name for name, count in verdicts.items() for _ in range(count)])
    summary = SimpleNamespace(cells=[SimpleNamespace(comparisons=[SimpleNamespace(verdict="")])])

    def made(*_: object, **__: object) -> object:
        summary.cells[0].comparisons[0].verdict = next(drawn)
        return summary

    monkeypatch.setattr("runner.selfcheck.experiment", made)
    records = tmp_path / "records.md"
    words = ["selfcheck", "aa", "--aa", str(sum(verdicts.values())), "--append", str(records)]
    assert main(words) == (0 if met else 1)
    assert ("| yes |" if met else "| NO |") in records.read_text()
