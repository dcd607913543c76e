"""Issue 2 and 6: experiments with real synthetic arms, from suite to verdict and exit code."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvbench.environment import fingerprint
from kvbench.errors import ArmFailure, UsageError
from kvbench.records import RunLine, Verdict, read_journal
from runner import ab
from runner.ab import Finished
from runner.local import LocalExecutor
from runner.plan import load_plan
from runner.selfcheck import competing_load
from runner.store import judge_again, load_summary
from tests.runner.conftest import Told, processes_of, write_suite


def experiment(
    tmp_path: Path, told: Told, arms: dict[str, dict[str, Any]], head: str = "", **more: Any
) -> Finished:
    require = more.pop("require", None)
    suite = write_suite(tmp_path, arms, head, **more)
    return ab.start(suite, told.watch, root=tmp_path / "results", require=require)


def spins(seconds: float) -> dict[str, Any]:
    """Settings of an arm whose measured time does not depend on what else the machine does."""
    return {"delay_s": seconds, "spin": True}


def test_a_slower_arm_is_slower_and_everything_is_on_disk(tmp_path: Path, told: Told) -> None:
    done = experiment(tmp_path, told, {"a": spins(0.005), "b": spins(0.01)})
    (cell,) = done.summary.cells
    (comparison,) = cell.comparisons
    assert comparison.verdict is Verdict.SLOWER and done.summary.exit_code == 0
    assert comparison.ratio is not None and comparison.ratio < 0.9
    assert comparison.method == "pairs with order term"
    assert [run.arm for run in cell.runs] == list("abbabaab")
    assert [run.pass_ for run in cell.runs] == [0, 0, 1, 1] * 2
    assert cell.gate.outcome == "passed"
    assert done.summary.finished is not None
    for name in ("plan.json", "journal.jsonl", "summary.json", "report.md"):
        assert (done.directory / name).stat().st_size > 0
    for line in (done.directory / "journal.jsonl").read_bytes().splitlines():
        assert len(line) <= 2048
    assert load_summary(done.directory) == done.summary


def test_stored_evidence_is_judged_to_the_same_summary(tmp_path: Path, told: Told) -> None:
    done = experiment(tmp_path, told, {"a": {}, "b": {"delay_s": 0.003}})
    assert judge_again(done.directory) == done.summary


def test_different_output_voids_the_cell_before_any_timing(tmp_path: Path, told: Told) -> None:
    """METHOD: gate first; a mismatch voids the arm, exit 4."""
    done = experiment(tmp_path, told, {"a": {"token": 7}, "b": {"token": 8}})
    (cell,) = done.summary.cells
    assert cell.gate.outcome == "mismatch" and not cell.runs
    assert cell.comparisons[0].verdict is Verdict.INVALID and done.summary.exit_code == 4


def test_different_bytes_moved_must_be_declared(tmp_path: Path, told: Told) -> None:
    arms = {"a": {"bytes": 10}, "b": {"bytes": 20}}
    assert experiment(tmp_path, told, arms).summary.exit_code == 4
    declared = experiment(tmp_path, told, arms, "bytes_may_differ = true")
    assert declared.summary.exit_code == 0


def test_an_arm_that_starts_to_differ_while_it_is_timed_is_caught(
    tmp_path: Path, told: Told
) -> None:
    """The gate passed; the hashes of timed runs are compared all the same."""
    done = experiment(tmp_path, told, {"a": {}, "b": {}})
    journal = done.directory / "journal.jsonl"
    from kvbench.records.lines import decode_line, encode_line

    lines = [decode_line(raw) for raw in journal.read_bytes().splitlines()]
    last = lines[-2]
    assert isinstance(last, RunLine) and last.result is not None
    changed = msgspec.structs.replace(last.result, hashes={"tokens": "f" * 32})
    lines[-2] = msgspec.structs.replace(last, result=changed)
    journal.write_bytes(b"".join(encode_line(line) + b"\n" for line in lines))
    summary = judge_again(done.directory)
    assert summary.exit_code == 4
    assert "outputs differ: tokens hash ffffffffffff" in summary.cells[0].comparisons[0].reason


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("crash", "was killed by signal 6"),
        ("garbage", "not a valid answer"),
        ("flood", "it printed a line of more than"),
    ],
)
def test_an_arm_that_fails_ends_its_cell_with_6(
    tmp_path: Path, told: Told, mode: str, said: str
) -> None:
    """The gate takes one run of b; its second timed run misbehaves."""
    b = {"mode": mode, "count": str(tmp_path / "count"), "after": 2}
    done = experiment(tmp_path, told, {"a": {}, "b": b})
    (cell,) = done.summary.cells
    assert done.summary.exit_code == 6
    assert cell.comparisons[0].verdict is Verdict.INVALID
    assert said in cell.comparisons[0].reason
    assert len(cell.runs) == 3 and cell.runs[-1].failure is not None


def test_a_hung_arm_is_ended_at_its_time_out(tmp_path: Path, told: Told) -> None:
    b = {"mode": "hang", "count": str(tmp_path / "count"), "after": 1}
    tables = "[timeouts]\nrun_s = 2.0"
    done = experiment(tmp_path, told, {"a": {}, "b": b}, tables=tables)
    assert done.summary.exit_code == 6
    assert "no answer within" in done.summary.cells[0].comparisons[0].reason


def test_children_that_linger_are_ended_and_harm_nobody(
    tmp_path: Path, told: Told, own_arm: Path
) -> None:
    done = experiment(tmp_path, told, {"a": {"mode": "linger"}, "b": {"mode": "linger"}})
    assert done.summary.exit_code == 0
    assert processes_of(own_arm) == []


def test_a_baseline_that_cannot_start_fails_its_rehearsal(tmp_path: Path, told: Told) -> None:
    with pytest.raises(ArmFailure, match=r"failed its rehearsal: .*killed by signal 6") as caught:
        experiment(tmp_path, told, {"a": {"mode": "crash"}, "b": {}})
    assert caught.value.exit_code == 6
    assert list((tmp_path / "results").iterdir()) == [], "nothing began: nothing to show or resume"


def test_breaking_a_limit_repeats_the_block_then_makes_it_invalid(
    tmp_path: Path, told: Told
) -> None:
    """M5: whole blocks are repeated for a telemetry violation only, and the report says so."""
    tables = "[environment]\nother_cores = 0\nsteal = 1.0\nrepeats = 1"
    with competing_load(1.0):  # on an idle machine there may be nothing else
        done = experiment(tmp_path, told, {"a": {}, "b": {}}, tables=tables)
    (cell,) = done.summary.cells
    assert done.summary.exit_code == 5
    assert "other processes used" in cell.comparisons[0].reason
    assert [(run.attempt, run.counted) for run in cell.runs[:8]] == [(0, False)] * 4 + [
        (1, True)
    ] * 4
    assert any(warning.code == "repeated-block" for warning in cell.warnings)
    assert told.total == len(cell.runs), "each repeated block was added to the runs to come"


@pytest.mark.parametrize(
    ("require", "delay", "code"),
    [("faster", 0.005, 0), ("faster", 0.02, 1), ("not-slower", 0.005, 0), ("not-slower", 0.02, 1)],
)
def test_requirements_decide_the_exit_code(
    tmp_path: Path, told: Told, require: str, delay: float, code: int
) -> None:
    arms = {"a": spins(0.01), "b": spins(delay)}
    done = experiment(tmp_path, told, arms, require=require)
    assert done.summary.exit_code == code
    assert done.summary.requirement_met is (code == 0)


def test_more_than_two_arms_and_a_grid(tmp_path: Path, told: Told) -> None:
    arms = {"a": spins(0.01), "b": spins(0.02), "c": spins(0.005)}
    grid = "[grid]\nworkload.generate = [2, 4]\n"
    done = experiment(tmp_path, told, arms, tables=grid)
    assert [cell.name for cell in done.summary.cells] == ["generate=2", "generate=4"]
    for cell in done.summary.cells:
        assert [c.arm for c in cell.comparisons] == ["b", "c"]
        assert [c.verdict for c in cell.comparisons] == [Verdict.SLOWER, Verdict.FASTER]
        assert [r.arm for r in cell.runs] == list("abccba") + list("bcaacb")
    codes = [warning.code for warning in done.summary.warnings]
    assert codes == ["unbalanced-positions"]
    first = min(done.summary.cells[1].runs, key=lambda run: run.order)
    assert first.order == 6  # cells to and fro: block 0 of both, then block 1


def test_a_look_stops_a_cell_that_is_decided(tmp_path: Path, told: Told) -> None:
    """M3: looks are declared in advance, each at alpha / 3."""
    arms = {"a": spins(0.005), "b": spins(0.01)}
    done = experiment(tmp_path, told, arms, "looks = [2, 4, 6]", generate=3)
    (comparison,) = done.summary.cells[0].comparisons
    assert comparison.verdict is Verdict.SLOWER
    assert len(comparison.blocks) in (2, 4) and done.summary.finished is not None


def test_the_link_is_calibrated_once_and_stored(tmp_path: Path, told: Told) -> None:
    """copy : compute = 2 with 1,000 bytes over 4 tokens of 10 ms: 12.5 kB/s."""
    arms = {"a": {"delay_s": 0.01}, "b": {"delay_s": 0.01}}
    done = experiment(tmp_path, told, arms, tables="[link]\nratio = 2.0")
    link = load_plan(done.directory).links["main"]
    assert link.bytes_per_s == pytest.approx(12_500)
    assert link.source == "calibrated" and link.ratio == 2.0
    assert "LINK SLOWED to 0.000 GB/s (calibrated, copy:compute 2)" in done.summary.labels
    runs = [line for line in read_journal(done.directory).lines if isinstance(line, RunLine)]
    for run in runs:
        stored = json.loads((done.directory / f"environments/{run.environment}.json").read_text())
        assert stored["arm"]["settings"]["link_gb_s"] == pytest.approx(12.5e-6)


def test_no_gate_is_said_first(tmp_path: Path, told: Told) -> None:
    done = experiment(tmp_path, told, {"a": {}, "b": {"token": 9}}, 'gate = "none"')
    assert done.summary.exit_code == 0 and done.summary.labels[0].startswith("NOT CHECKED")


def test_affinity_is_where_the_arm_runs(tmp_path: Path, told: Told) -> None:
    allowed = min(os.sched_getaffinity(0))
    done = experiment(tmp_path, told, {"a": {}, "b": {}}, f"affinity = [{allowed}]")
    assert done.summary.exit_code == 0
    with pytest.raises(UsageError, match=r"affinity: \[4095\]"):
        experiment(tmp_path, told, {"a": {}, "b": {}}, "affinity = [4095]", name="far")


def test_what_cannot_fit_is_refused_with_the_reason(tmp_path: Path, told: Told) -> None:
    with pytest.raises(UsageError, match=r"timeouts\.sweep_s: the suite needs about"):
        experiment(tmp_path, told, {"a": {}, "b": {}}, tables="[timeouts]\nsweep_s = 0.001")
    assert not any("tok/s" in line for line in told.lines)


def test_secrets_and_paths_stay_out_of_the_records(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """METHOD, privacy."""
    monkeypatch.setenv("MY_API_KEY", "hunter2hunter2")
    suite = Path(write_suite(tmp_path, {"a": {}, "b": {}}))
    key = 'name = "b"\nenv = { MY_API_KEY = "$MY_API_KEY" }'
    suite.write_text(suite.read_text().replace('name = "b"', key))
    words = ["kvbench", "ab", "--api-key", "hunter2hunter2", f"{Path.home()}/x"]
    done = ab.start(str(suite), told.watch, root=tmp_path / "results", command=words)
    everything = b"".join(p.read_bytes() for p in done.directory.rglob("*") if p.is_file())
    assert b"hunter2" not in everything
    assert done.summary.command[-1] == "$HOME/x"
    suite.write_text(suite.read_text().replace('"$MY_API_KEY"', '"literal"'))
    with pytest.raises(UsageError, match=r"arms\[1\].env.MY_API_KEY: looks like a secret"):
        ab.start(str(suite), told.watch, root=tmp_path / "results")


def test_the_sweeps_time_ends_it_with_what_there_is(tmp_path: Path, told: Told) -> None:
    """The rehearsal sees the baseline only; b turns out far slower than it."""
    arms = {"a": {"delay_s": 0.001}, "b": {"delay_s": 0.8}}
    suite = write_suite(tmp_path, arms, 'gate = "none"', tables="[timeouts]\nsweep_s = 12.0")
    with pytest.raises(ArmFailure, match=r"timeouts\.sweep_s: 12 s are over") as caught:
        ab.start(suite, told.watch, root=tmp_path / "results")
    assert caught.value.exit_code == 6
    (directory,) = (tmp_path / "results").iterdir()
    summary = load_summary(directory)
    assert summary.finished is None and 1 <= len(summary.cells[0].runs) < 8
    assert "--resume" in str(caught.value)


def test_a_tolerance_is_named_first_and_must_be_checkable(tmp_path: Path, told: Told) -> None:
    """The synthetic arms give no logits: within a tolerance nothing can be said of them."""
    head = 'gate = "tolerance"\ntolerance = { logits = 0.1 }'
    done = experiment(tmp_path, told, {"a": {"token": 7}, "b": {"token": 8}}, head)
    assert done.summary.labels[0].startswith("WITHIN A TOLERANCE, NOT EXACT")
    assert done.summary.exit_code == 4


def test_what_the_command_line_changed_is_no_changed_suite(tmp_path: Path, told: Told) -> None:
    suite = write_suite(tmp_path, {"a": {}, "b": {}}, 'gate = "none"')
    overrides = ab.Overrides(blocks=4, delta=0.05)
    done = ab.start(suite, told.watch, root=tmp_path / "results", overrides=overrides)
    assert done.summary.blocks == 4 and done.summary.delta == 0.05
    again = ab.go_on(str(done.directory), told.watch, suite_ref=suite)
    assert len(again.summary.cells[0].runs) == 16
    Path(suite).unlink()
    assert ab.go_on(str(done.directory), told.watch).summary.exit_code == 0
    with pytest.raises(UsageError, match="cannot read the suite"):
        ab.go_on(str(done.directory), told.watch, suite_ref=suite)
    with pytest.raises(UsageError, match=r"command line: blocks: 3 is odd"):
        ab.Overrides(blocks=3).apply(done_suite(done))


def done_suite(done: Finished) -> Any:
    return load_plan(done.directory).resolve()[0]


class Moving(LocalExecutor):
    """A cluster's worker that is another one for the second block."""

    def __init__(self, field: str, value: object) -> None:
        super().__init__(fingerprint())
        self.field, self.value, self.rounds = field, value, 0

    def run(self, jobs: Any, emit: Any, doing: Any) -> list[tuple[Any, str]]:
        self.rounds += 1
        if self.rounds == 2:
            self.machine = copy.deepcopy(self.machine)
            self.machine["machine"][self.field] = self.value
        return super().run(jobs, emit, doing)


@pytest.mark.parametrize(("field", "code"), [("cpu", 5), ("gpus", 5), ("id", 0)])
def test_a_worker_of_another_kind_voids_the_cell(
    tmp_path: Path, told: Told, field: str, code: int
) -> None:
    """Issue 6, scale. Another machine of the same kind is another id only."""
    suite = write_suite(tmp_path, {"a": {}, "b": {}}, 'gate = "none"')
    done = ab.start(
        suite, told.watch, root=tmp_path / "results", executor=Moving(field, ["another"])
    )
    assert done.summary.exit_code == code
    if code:
        reason = done.summary.cells[0].comparisons[0].reason
        assert f"the environment changed between runs of main: machine.{field}" in reason


def test_a_result_too_large_for_the_journal_is_the_arms_failure(tmp_path: Path, told: Told) -> None:
    done = experiment(tmp_path, told, {"a": {}, "b": {"hashes": 100}}, 'gate = "none"')
    assert done.summary.exit_code == 6
    assert "its hashes and byte counts take" in done.summary.cells[0].comparisons[0].reason
    fits = experiment(tmp_path, told, {"a": {"hashes": 8}, "b": {"hashes": 8}}, 'gate = "none"')
    assert fits.summary.exit_code == 0
