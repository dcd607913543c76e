"""The transport's gates pass on the clean decoder and fail, each, with a fault planted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gates import registry
from gates.registry import GateOptions
from gates.transport import explain, flips, mutants, sensitivity, structure
from gates.transport.delivery import pitch_of
from gates.transport.harness import IssueOrder
from gates.transport.harness import run as run_scenario
from gates.transport.scenarios import BY_NAME, SCENARIOS
from kvbench.decoder.faults import FAULTS, KINDS, find
from kvbench.errors import UsageError
from kvbench.records.gate import GateReport
from kvbench.transport.order import Order

QUICK = GateOptions(quick=True)


def _run(name: str, options: GateOptions) -> GateReport:
    return registry.load(name)(options)


@pytest.mark.parametrize(
    "name", ["races", "delivery", "structure", "schedules", "recovery", "flips", "ranges"]
)
def test_clean(name: str) -> None:
    """No false alarm."""
    report = _run(name, QUICK)
    assert report.outcome == "passed", report.message


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("races", "no_ready_wait"),
        ("races", "no_release_wait"),
        ("races", "no_boundary_wait"),
        ("races", "no_tail_wait"),
        ("races", "ring_freed_in_flight"),
        ("races", "never_recorded"),
        ("delivery", "one_cell_per_stream"),
        ("delivery", "wrong_layer"),
        ("delivery", "cross_sequence"),
        ("delivery", "source_off_by_one_row"),
        ("schedules", "no_release_wait"),
        ("schedules", "graph_blind_phase"),
        ("ranges", "reads_beyond_length"),
    ],
)
def test_planted(name: str, fault: str) -> None:
    """Each gate fails with a fault of its kind, every time."""
    report = _run(name, GateOptions(inject=(fault,)))
    assert report.exit_code == 4, report.message


def test_a_failing_schedule_names_its_seed_and_a_shortest_order() -> None:
    """What a maintainer needs to repeat it."""
    report = _run("schedules", GateOptions(inject=("no_release_wait",)))
    assert "seed " in report.message and "held back from its item" in report.message


@pytest.mark.parametrize("ablation", ["one_slot_less", "issue_before", "recycle_through_host"])
def test_what_loses_the_gain_fails_the_structure_gate(ablation: str) -> None:
    """T6: every byte stays right, and the gate for the gain still objects."""
    scenario = BY_NAME["decode"]
    out = run_scenario(scenario, picker=IssueOrder(0), ablate=(ablation,))
    assert out.digest == run_scenario(scenario, picker=IssueOrder(0)).digest
    report = structure.run(GateOptions(quick=True, settings={"ablate": (ablation,)}))
    assert report.outcome == "mismatch" and ("T6" in report.message)


def test_a_blocking_loop_fails_the_structure_gate() -> None:
    """A host wait at every store: right bytes, no gain."""
    report = structure.run(GateOptions(quick=True, settings={"loop": "blocking", "tail": "host"}))
    assert "the host waits inside a token at 'store'" in report.message


@pytest.mark.parametrize(
    "name", ["no_ready_wait", "wrong_layer", "state_not_fetched", "others_prompt"]
)
def test_some_faults_in_the_quick_tier(name: str) -> None:
    """The matrix is a long test; these four keep its machinery honest."""
    assert sensitivity.detect(find(name)).certain


@pytest.mark.long
def test_the_whole_matrix() -> None:
    """Every fault is caught, every time; no clean scenario trips."""
    report = sensitivity.run(GateOptions())
    assert report.outcome == "passed", report.message


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["mutants", "schedules", "recovery", "flips", "races", "ranges"],
)
def test_in_full(name: str) -> None:
    """Every mutant, 1,000 orders, every failing step, 1,000 flips, every scenario."""
    report = _run(name, GateOptions())
    assert report.outcome == "passed", report.message


def test_a_mutant_that_nothing_notices_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutants gate can fail: here both detectors are made blind."""
    monkeypatch.setattr(mutants, "check", lambda *_, **__: [])
    monkeypatch.setattr(mutants, "SCENARIOS", ("small",))
    assert mutants.run(GateOptions(quick=True)).outcome == "mismatch"


def test_waits_are_needed_but_for_those_kept_with_a_reason() -> None:
    """T4, H15: the gate's output names each wait that it lets stay, and why."""
    kept = {
        name: mutants._waits(BY_NAME[name], 1).details["kept"]
        for name in ("small_host", "small_graphs", "host")
    }
    sites = {name: {why.partition(":")[0] for why in found} for name, found in kept.items()}
    close = "host at close"
    assert sites["small_host"] == {close}
    assert sites["small_graphs"] == {close, "graph"}  # graph:cpu0/transfer at fork
    assert sites["host"] == {close, "cpu0/transfer at boundary"}


def test_a_wait_too_many_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutants gate can fail on a clean run: here the transport forgets what it knows."""
    monkeypatch.setattr(Order, "_has", lambda *_: False)
    monkeypatch.setattr(mutants, "SCENARIOS", ())
    monkeypatch.setattr(mutants, "WAITS_TOO", ("few",))
    report = mutants.run(GateOptions())
    assert report.outcome == "mismatch" and "implied by other edges" in report.message


def test_an_equivalent_mutant_is_one_whose_bytes_are_the_same() -> None:
    """Two tokens of a kind have the same V in layer 0: moving that copy by a row moves no byte."""
    scenario = BY_NAME["small_host"]
    hooks = mutants._OneCopy(mutants.MUTATIONS["source a row earlier"], 55, pitch_of(scenario))
    out = run_scenario(scenario, hooks=hooks, picker=IssueOrder(0))
    (mutant,) = (e for e in out.log.entries if mutants.MUTANT in e.tags)
    assert mutant.label == "late 0" and out.tokens[1][1] == out.tokens[0][1]
    assert mutant.writes[0].offset not in hooks.spoiled[0]
    assert not mutants._read(out.log, hooks.spoiled)
    assert mutants._read(out.log, [{mutant.writes[0].offset}])


def test_a_flip_that_nothing_notices_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flips gate can fail: without audit mode the sums stand still."""
    blind = BY_NAME["small"]
    settings = {**blind.settings, "audit": False}
    monkeypatch.setattr(flips, "SCENARIOS", ("small",))
    monkeypatch.setitem(
        flips.BY_NAME,
        "small",
        type(blind)(
            blind.name, blind.program, blind.model, settings, blind.sequences, blind.capacity
        ),
    )
    assert flips.run(GateOptions(quick=True)).outcome == "mismatch"


def test_explain_finds_operation_and_smallest_program() -> None:
    """The first differing operation is the first reader of what the fault spoiled."""
    found = explain.explain(BY_NAME["decode"], find("wrong_layer").hooks)
    assert found is not None and found.operation.startswith("attend")
    assert len(found.program) <= len(BY_NAME["decode"].program)


def test_every_kind_and_hazard_has_a_fault() -> None:
    """FAULTS and HAZARDS: all sixteen kinds, every hazard that this decoder can commit."""
    assert {f.kind for f in FAULTS} == set(KINDS) and len(KINDS) == 16
    covered = {h for f in FAULTS for h in f.hazards}
    assert covered >= {f"H{i}" for i in range(1, 22)}
    assert {f.scenario for f in FAULTS} <= {s.name for s in SCENARIOS} | {sensitivity.TASK}


def test_the_base_is_recorded_then_compared(tmp_path: Path) -> None:
    """Without a base nothing is claimed; with one, another build's bytes are a mismatch."""
    file = tmp_path / "base.json"
    options = GateOptions(quick=True, settings={"base": str(file), "scenario": "small"})
    assert _run("base", options).outcome == "not checked"
    recording = {**options.settings, "record": True}
    assert _run("base", GateOptions(quick=True, settings=recording)).outcome == "passed"
    assert _run("base", options).outcome == "passed"
    content = json.loads(file.read_text())
    content["digests"]["small"] = "0" * 32
    file.write_text(json.dumps(content))
    assert _run("base", options).outcome == "mismatch"
    file.write_text("[]")
    with pytest.raises(UsageError, match="not a file of recorded digests"):
        _run("base", options)
