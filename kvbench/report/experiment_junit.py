"""JUnit XML of an experiment: a suite per cell; the gate and each comparison are its cases.

A comparison's time is what all runs of its two arms decoded for, in seconds; a suite's is the
gate's and every run's, so that a baseline with several comparisons is counted once.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from kvbench.records import CellSummary, Comparison, Summary, Verdict
from kvbench.report.words import sentence

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(summary: Summary) -> str:
    """One document. INVALID and an unmet requirement are failures; NOT CHECKED is skipped."""
    root = ElementTree.Element("testsuites", name=_text(f"kvbench {summary.suite}"))
    totals = [0, 0, 0]
    for cell in summary.cells:
        counts = _cell(root, summary, cell)
        totals = [a + b for a, b in zip(totals, counts, strict=True)]
    for key, value in zip(("tests", "failures", "skipped"), totals, strict=True):
        root.set(key, str(value))
    root.set("time", f"{sum(map(_seconds, summary.cells)):.3f}")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _cell(root: ElementTree.Element, summary: Summary, cell: CellSummary) -> list[int]:
    suite = ElementTree.SubElement(root, "testsuite", name=_text(f"{summary.suite}.{cell.name}"))
    cases = [_gate(suite, cell)]
    cases += [_comparison(suite, summary, cell, each) for each in cell.comparisons]
    failures = sum(1 for case in cases if case.find("failure") is not None)
    skipped = sum(1 for case in cases if case.find("skipped") is not None)
    counts = [len(cases), failures, skipped]
    for key, value in zip(("tests", "failures", "skipped"), counts, strict=True):
        suite.set(key, str(value))
    suite.set("time", f"{_seconds(cell):.3f}")
    return counts


def _seconds(cell: CellSummary) -> float:
    return cell.gate.seconds + _decoded(cell, {arm.name for arm in cell.arms})


def _decoded(cell: CellSummary, arms: set[str]) -> float:
    tokens = {arm.name: arm.tokens or 0 for arm in cell.arms}
    return sum(
        tokens[run.arm] / run.tok_s
        for run in cell.runs
        if run.arm in arms and run.tok_s is not None
    )


def _case(suite: ElementTree.Element, name: str, seconds: float) -> ElementTree.Element:
    return ElementTree.SubElement(
        suite,
        "testcase",
        classname=suite.get("name", ""),
        name=_text(name),
        time=f"{seconds:.3f}",
    )


def _gate(suite: ElementTree.Element, cell: CellSummary) -> ElementTree.Element:
    case = _case(suite, "exactness gate", cell.gate.seconds)
    if cell.gate.outcome == "not checked":
        ElementTree.SubElement(case, "skipped", message=_text(cell.gate.message))
    elif cell.gate.outcome != "passed":
        ElementTree.SubElement(
            case, "failure", type=cell.gate.outcome, message=_text(cell.gate.message)
        )
    return case


def _comparison(
    suite: ElementTree.Element, summary: Summary, cell: CellSummary, comparison: Comparison
) -> ElementTree.Element:
    seconds = _decoded(cell, {comparison.arm, comparison.baseline})
    case = _case(suite, f"{comparison.arm} against {comparison.baseline}", seconds)
    said = _text(sentence(comparison, summary.delta))
    unmet = summary.requirement_met is False
    if comparison.verdict is Verdict.INVALID:
        ElementTree.SubElement(case, "failure", type="INVALID", message=said)
    elif unmet and not _meets(summary, comparison):
        why = f"--require {summary.requirement}: {said}"
        ElementTree.SubElement(case, "failure", type=comparison.verdict, message=why)
    ElementTree.SubElement(case, "system-out").text = said
    return case


def _meets(summary: Summary, comparison: Comparison) -> bool:
    if summary.requirement == "not-slower":
        return comparison.ci90 is not None and comparison.ci90[0] > 1 / (1 + summary.delta)
    return comparison.verdict.lower() == summary.requirement


def _text(text: str) -> str:
    """What XML 1.0 can hold; the rest becomes U+FFFD."""
    return _NOT_XML.sub("\ufffd", text)
