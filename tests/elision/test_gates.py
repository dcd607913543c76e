"""The gates pass on what is right and fail on every failed design and dropped wait (S6)."""

from __future__ import annotations

import pytest

from gates.elision import arms, speculation, waits
from gates.registry import GateOptions
from kvbench.decoder.waits import SITES
from kvbench.device.failed_designs import CONTEXTS
from kvbench.errors import SettingError
from kvbench.records.gate import GateReport

pytestmark = pytest.mark.filterwarnings("error")


def failed(report: GateReport) -> set[str]:
    """The kinds of evidence that tripped: bytes, races, counts, calls ..."""
    return {c.name.split(":")[0] for c in report.checks if c.outcome != "passed"}


def gate(*inject: str) -> GateReport:
    return waits.run(GateOptions(quick=True, inject=inject))


def test_a_clean_build_passes() -> None:
    report = gate()
    assert report.outcome == "passed", report.message
    assert {c.name.split(":")[0] for c in report.checks} >= {"bytes", "races", "counts", "calls"}


@pytest.fixture
def plain_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain decoding, eager and captured, is enough to see what a fault trips."""
    monkeypatch.setattr(waits, "DRAFTS", {"plain": "none"})


@pytest.mark.usefixtures("plain_only")
@pytest.mark.parametrize(
    ("design", "evidence"),
    [
        ("submit_sites", {"bytes", "races", "counts"}),
        ("scheduler", {"bytes", "races", "counts"}),
        ("entry_points", {"bytes", "races", "counts"}),
        ("rearmed", {"counts"}),
    ],
)
def test_every_failed_design_is_caught_s6(design: str, evidence: set[str]) -> None:
    found = failed(gate(f"mark={design}"))
    assert evidence <= found or "runs" in found  # a run that ends in an error is caught too


def test_every_failed_design_has_its_test() -> None:
    tested = {"submit_sites", "scheduler", "entry_points", "rearmed"}
    assert set(CONTEXTS) == tested | {"queue"}


@pytest.mark.usefixtures("plain_only")
@pytest.mark.parametrize("site", [s.name for s in SITES if s.elided and s.per != "row"])
def test_a_wait_left_out_in_spite_of_the_mark_is_caught_s6(site: str) -> None:
    found = failed(gate(f"elided_at={site}"))
    assert "counts" in found
    if site in ("get.logits", "upload.tokens"):
        assert "races" in found, "nothing later makes up for it"
    if site == "graph.done":
        assert not found & {"bytes", "races"}, "redundant, as the table says"


@pytest.mark.usefixtures("plain_only")
def test_a_read_without_its_wait_is_caught_in_quiet() -> None:
    assert "races" in failed(gate("elided_at=read"))


def test_the_speculation_gate_covers_what_it_claims() -> None:
    shapes = speculation._shapes(list(range(1, 16)))
    seen = {(s["draft_length"], s["depth"], n) for _, n, s in shapes if "draft_length" in s}
    assert seen == {(k, depth, n) for k in range(1, 16) for depth in (0, 1) for n in (1, 3)}


def test_speculation_gate_passes_and_catches_a_dropped_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shapes = speculation._shapes([1, 15])[::3]
    monkeypatch.setattr(speculation, "_shapes", lambda _: shapes)
    clean = speculation.run(GateOptions(quick=True))
    assert clean.outcome == "passed", clean.message
    assert any("guesses accepted" in c.message for c in clean.checks)
    monkeypatch.setattr(speculation, "_shapes", lambda _: shapes[:2])
    broken = speculation.run(GateOptions(quick=True, inject=("elided_at=read",)))
    assert {c.outcome for c in broken.checks} & {"mismatch", "failed"}


def test_an_unknown_design_is_refused_in_one_line() -> None:
    with pytest.raises(SettingError, match="one of queue, submit_sites"):
        arms.planted(GateOptions(inject=("mark=flag",)))


def test_a_wait_that_is_nowhere_cannot_be_left_out_s6() -> None:
    """Accepted, it would be a fault planted nowhere, and the gate would pass."""
    with pytest.raises(SettingError, match=r"one of decode\.enter, .*, read"):
        arms.planted(GateOptions(inject=("elided_at=get.logit",)))


@pytest.mark.usefixtures("plain_only")
def test_a_wait_that_no_run_makes_cannot_be_left_out_s6() -> None:
    with pytest.raises(SettingError, match="a wait that these runs make"):
        gate("elided_at=upload.cells")
