"""Gate reports as JUnit XML, for continuous integration."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree

from kvbench.records.gate import Check, GateReport, Outcome

_TAGS: dict[Outcome, str] = {
    "mismatch": "failure",
    "ungateable": "failure",
    "not checked": "failure",
    "failed": "error",
}


def junit(reports: Iterable[GateReport]) -> bytes:
    """One ``testsuite`` per gate and one ``testcase`` per check. "Not checked" is a failure."""
    root = ElementTree.Element("testsuites", name="kvbench gate")
    for report in reports:
        root.append(_suite(report))
    ElementTree.indent(root)
    data: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _suite(report: GateReport) -> ElementTree.Element:
    tags = [_TAGS.get(check.outcome) for check in report.checks]
    suite = ElementTree.Element(
        "testsuite",
        name=_printable(report.gate),
        tests=str(len(report.checks)),
        failures=str(tags.count("failure")),
        errors=str(tags.count("error")),
        skipped="0",
        time=f"{report.seconds:.3f}",
    )
    properties = ElementTree.SubElement(suite, "properties")
    facts = [("baseline", report.baseline)]
    facts += [(f"version.{arm}", version) for arm, version in report.versions.items()]
    facts += [("note", note) for note in report.notes]
    for name, value in facts:
        ElementTree.SubElement(
            properties, "property", name=_printable(name), value=_printable(value)
        )
    suite.extend(_case(report.gate, check) for check in report.checks)
    return suite


def _case(gate: str, check: Check) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        classname=_printable(f"kvbench.gate.{gate}"),
        name=_printable(check.name),
        time=f"{check.seconds:.3f}",
    )
    tag = _TAGS.get(check.outcome)
    if tag is not None:
        message = _printable(check.message)
        found = ElementTree.SubElement(case, tag, type=check.outcome, message=message)
        found.text = _printable("\n".join(filter(None, (check.message, check.forced))))
    return case


def _printable(text: str) -> str:
    """XML 1.0 has no place for control characters and lone surrogates, not even escaped."""
    return "".join(
        char
        if char in "\t\n\r"
        or " " <= char <= "\ud7ff"
        or "\ue000" <= char <= "\ufffd"
        or char > "\uffff"
        else "\ufffd"
        for char in text
    )
