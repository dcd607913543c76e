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
        for arm, version in report.versions.items():
            yield f"    {visible(arm)}: {visible(version)}"
        for note in report.notes:
            yield f"    note: {visible(note)}"
        for check in report.checks:
            if verbose or check.outcome != "passed":
                yield f"    {check.outcome}: {visible(check.name)}: {visible(check.message)}"
                if check.forced:
                    yield f"        {visible(check.forced)}"
