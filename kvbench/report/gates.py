"""Gate reports for people: one line per gate, one more per check that did not pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvbench.records.gate import GateReport
from kvbench.report.words import visible


def gate_lines(reports: Iterable[GateReport], *, verbose: bool = False) -> Iterator[str]:
    """Plain text. With ``verbose`` the checks that passed are listed too."""
    for report in reports:
        passed = sum(check.outcome == "passed" for check in report.checks)
        yield (
            f"{report.outcome.upper():<12} {visible(report.gate)}: "
            f"{passed} of {len(report.checks)} checks passed, {report.seconds:.1f} s"
        )
        for version, arms in _by_version(report).items():
            yield f"    {', '.join(map(visible, arms))}: {visible(version)}"
        for note in report.notes:
            yield f"    note: {visible(note)}"
        for check in report.checks:
            if verbose or check.outcome != "passed":
                yield f"    {check.outcome}: {visible(check.name)}: {visible(check.message)}"
                if check.forced:
                    yield f"        {visible(check.forced)}"


def _by_version(report: GateReport) -> dict[str, list[str]]:
    """Version -> arms; one that all share is said once."""
    found: dict[str, list[str]] = {}
    for arm, version in report.versions.items():
        found.setdefault(version, []).append(arm)
    return {version: ["all arms"] for version in found} if len(found) == 1 else found
