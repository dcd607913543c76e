"""Gates over a suite's own arms: other engines, negative controls, tolerance, serial baseline."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvbench
from gates.exact import CellOptions, gate_cell
from gates.exact.effective import setting_notes
from gates.exact.forced import divergence
from gates.registry import GateOptions
from kvbench.cli import main
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task
from kvbench.errors import KvbenchError, UsageError
from kvbench.records.gate import GateReport
from kvbench.spec import Tolerance
from runner import suite_gate
from runner.suite_gate import KnownBad

FAULTY = [sys.executable, "-I", str(Path(__file__).parent / "faulty_arm.py")]
MakeArm = Callable[..., Arm]


def suite(tmp_path: Path, *, gate: str = "exact", extra: str = "", **arms: dict[str, Any]) -> str:
    """A suite of faulty arms; ``base`` is the baseline."""
    lines = ["schema = 1", 'name = "s"', 'baseline = "base"', f'gate = "{gate}"', "blocks = 2"]
    lines += ['model = "synthetic:tiny"', extra, "[workload]", "prompt_tokens = 8", "generate = 16"]
    for name, settings in {"base": {}, **arms}.items():
        table = ", ".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
        lines += ["[[arms]]", f'name = "{name}"', 'engine = "program"']
        lines += [f"command = {json.dumps(FAULTY)}", f"settings = {{ {table} }}"]
    file = tmp_path / "suite.toml"
    file.write_text("\n".join(lines))
    return str(file)


def test_a_suites_arms_are_gated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", suite(tmp_path, same={}), "--verbose"]) == 0
    assert "same against base" in capsys.readouterr().out
    assert main(["gate", suite(tmp_path, bad={"at": [0, 3], "flip": True})]) == 4
    assert "sequence 0, position 3" in capsys.readouterr().out


def test_a_negative_control_must_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a build that is known to be wrong being found wrong, there is no pass."""
    file = suite(tmp_path, same={}, bad={"at": [0, 3], "flip": True})
    assert main(["gate", file, "--must-fail", "bad", "--verbose"]) == 0
    assert "bad-known-bad must fail: it does" in capsys.readouterr().out
    assert main(["gate", suite(tmp_path, same={}), "--must-fail", "same:at=[0,1]:flip=true"]) == 0
    capsys.readouterr()
    assert main(["gate", suite(tmp_path, same={}, good={}), "--must-fail", "good"]) == 4
    assert "proves nothing" in capsys.readouterr().out


@pytest.mark.parametrize("control", ["nobody", "base", "same:", "same:x"])
def test_an_unusable_control_is_refused(tmp_path: Path, control: str) -> None:
    assert main(["gate", suite(tmp_path, same={}), "--must-fail", control]) == 2


def test_a_control_needs_a_suite() -> None:
    assert main(["gate", "single", "--must-fail", "x"]) == 2
    with pytest.raises(UsageError, match="must_fail"):
        kvbench.gate("single", must_fail="x")


@pytest.mark.parametrize(
    "given",
    [["--inject", "x"], ["--set", "a=1"], ["--seed", "2"], ["--timeout", "9"], ["--explain"]],
    ids=lambda given: given[0],
)
def test_a_suite_refuses_what_only_a_gate_knows(tmp_path: Path, given: list[str]) -> None:
    """Ignored, a fault would be planted nowhere and the gate would pass."""
    assert main(["gate", suite(tmp_path, same={}), *given]) == 2


def test_the_python_face_refuses_it_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="inject, seed: only for a named gate"):
        kvbench.gate(suite(tmp_path, same={}), options=GateOptions(inject=("x",), seed=2))


def test_a_control_may_be_another_server() -> None:
    bad = KnownBad.parse('b:url=http://127.0.0.1:8001/x:args=["-c", "a:b"]:n=2')
    assert bad.arm == "b"
    assert bad.changes == {"url": "http://127.0.0.1:8001/x", "args": ["-c", "a:b"], "n": 2}


def test_conversations_have_no_serial_counterpart(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are had one after another; clients of other workloads ask at once."""
    asked: dict[str, bool] = {}

    def seen(_b: Arm, _a: list[Arm], tasks: list[Task], options: CellOptions) -> GateReport:
        asked[tasks[0].name] = options.serial
        return GateReport(gate="s", checks=())

    monkeypatch.setattr(suite_gate, "gate_cell", seen)
    monkeypatch.setattr(
        suite_gate,
        "task_of",
        lambda cell: Task(prompts=[[1], [2]], generate=4, name=cell.workload.kind),
    )
    for kind in ("conversations", "prose"):
        raw: dict[str, Any] = {
            "schema": 1,
            "name": "s",
            "baseline": "a",
            "model": "synthetic:tiny",
            "workload": {"kind": kind, "sequences": 2, "generate": 4, "prompt_tokens": 64},
            "arms": [{"name": n, "engine": "reference"} for n in "ab"],
        }
        kvbench.gate(raw)
    assert asked == {"conversations": False, "prose": True}


def test_the_python_face(tmp_path: Path) -> None:
    kvbench.assert_exact(suite(tmp_path, same={}))
    with pytest.raises(AssertionError, match="position 3"):
        kvbench.assert_exact(suite(tmp_path, bad={"at": [0, 3], "flip": True}))
    (report,) = kvbench.gate(suite(tmp_path, same={}))
    assert report.outcome == "passed"
    arms = [Arm(name=n, engine="program", command=FAULTY) for n in "ab"]
    assert kvbench.gate_arms(arms[0], arms[1:], [[1, 2], [3]], generate=4).outcome == "passed"
    with pytest.raises(KvbenchError, match="nothing to check"):
        kvbench.gate(suite(tmp_path, gate="none", same={}))


def test_the_public_names_are_these() -> None:
    for name in kvbench.__all__:
        assert getattr(kvbench, name) is not None
    with pytest.raises(AttributeError):
        _ = kvbench.no_such_name  # type: ignore[attr-defined]


def tolerant(arm: MakeArm, tasks: list[Task], limit: float, **bad: Any) -> Any:
    options = CellOptions(tolerance=Tolerance(logits=limit))
    return gate_cell(arm("base"), [arm("b", **bad)], tasks, options)


def test_a_declared_tolerance_is_named_and_holds(arm: MakeArm, tasks: list[Task]) -> None:
    noisy = {"at": [0, 3], "noise": True}
    within = tolerant(arm, tasks, 0.3, **noisy)
    assert within.outcome == "passed"
    assert any("NOT EXACT" in note and "0.3" in note for note in within.notes)
    assert "largest is 0.25" in next(c for c in within.checks if c.arm == "b").message
    assert tolerant(arm, tasks, 0.2, **noisy).outcome == "mismatch"


def test_a_tolerance_that_cannot_be_measured_is_no_pass(arm: MakeArm, tasks: list[Task]) -> None:
    options = CellOptions(tolerance=Tolerance(kl=0.1))
    assert gate_cell(arm("base"), [arm("b")], tasks, options).outcome == "not checked"
    assert tolerant(arm, tasks, 0.2, no_top2=True).outcome == "not checked"


weights = st.lists(st.floats(0.01, 1.0), min_size=3, max_size=6)


@given(weights, weights)
def test_the_kl_of_listed_candidates_is_a_lower_bound(p: list[float], q: list[float]) -> None:
    n = min(len(p), len(q))
    p, q = [x / sum(p[:n]) for x in p[:n]], [x / sum(q[:n]) for x in q[:n]]
    whole = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    listed = [{str(i): math.log(x) for i, x in enumerate(side[:-1])} for side in (p, q)]
    assert divergence(listed[0], listed[1]) <= whole + 1e-9
    assert divergence(listed[0], listed[0]) == pytest.approx(0.0, abs=1e-9)


def test_concurrent_clients_against_serial_ones(arm: MakeArm, tasks: list[Task]) -> None:
    options = CellOptions(serial=True)
    report = gate_cell(arm("base"), [arm("same")], tasks, options)
    assert [check.arm for check in report.checks if "serial" in check.name] == ["base", "same"]
    assert report.outcome == "passed"


def test_an_engine_whose_output_depends_on_the_batch_is_not_called_wrong(
    arm: MakeArm, tasks: list[Task]
) -> None:
    """The fault sits in sequence 2, which a lone client never is: the batch changes the output."""
    batchy = {"at": [2, 5], "flip": True}
    report = gate_cell(arm("a", **batchy), [arm("b", **batchy)], tasks, CellOptions(serial=True))
    assert report.outcome == "passed"
    assert any("depends on the batch" in note for note in report.notes)


def test_settings_that_are_not_what_was_asked_are_shown() -> None:
    a, b = Arm(name="a", settings={"x": 1}), Arm(name="b", settings={"x": 1})
    notes = setting_notes(a, [b], {"a": {"x": 1, "y": [1]}, "b": {"x": 2, "y": (1,)}})
    assert notes == ["b: asked for x = 1, runs with 2", "b: x = 2 (a: 1), unasked"]
    asked = Arm(name="c", settings={"x": 3})
    assert setting_notes(a, [asked], {"a": {"x": 1}, "c": {"x": 3}}) == []
