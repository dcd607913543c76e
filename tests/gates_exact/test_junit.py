"""JUnit XML and plain text out of gate reports."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from kvbench.records.gate import Check, GateReport, Outcome, worst_exit_code
from kvbench.report.gates import gate_lines
from kvbench.report.junit import junit

OUTCOMES: tuple[Outcome, ...] = ("passed", "mismatch", "ungateable", "failed", "not checked")
checks = st.builds(
    Check, name=st.text(), outcome=st.sampled_from(OUTCOMES), message=st.text(), forced=st.text()
)


@given(st.lists(checks, max_size=5), st.text(), st.text())
def test_any_report_is_well_formed_xml_with_right_counts(
    found: list[Check], gate: str, note: str
) -> None:
    report = GateReport(gate=gate, checks=tuple(found), notes=(note,))
    suite = ElementTree.fromstring(junit([report]))[0]
    outcomes = [check.outcome for check in found]
    assert suite.get("tests") == str(len(found))
    assert suite.get("errors") == str(outcomes.count("failed"))
    bad = len(found) - outcomes.count("failed") - outcomes.count("passed")
    assert suite.get("failures") == str(bad)
    assert len(suite.findall("testcase")) == len(found)


@given(st.lists(checks, max_size=5), st.text())
def test_every_check_that_did_not_pass_is_printed_on_its_line(
    found: list[Check], gate: str
) -> None:
    lines = list(gate_lines([GateReport(gate=gate, checks=tuple(found))]))
    bad = [check for check in found if check.outcome != "passed"]
    assert len(lines) == 1 + len(bad) + sum(bool(check.forced) for check in bad)
    assert not any("\n" in line or "\x1b" in line for line in lines)


def test_no_gate_is_no_pass() -> None:
    assert worst_exit_code([]) == 4
    assert GateReport(gate="x", checks=()).exit_code == 4
