"""GitHub Actions: annotations for the log, and the job summary."""

from __future__ import annotations

from collections.abc import Iterator

from kvbench.records import Summary, Verdict
from kvbench.report.words import sentence


def render_annotations(summary: Summary) -> str:
    """Workflow commands, one a line: an error, warning or notice per gate and comparison."""
    return "".join(f"{line}\n" for line in _lines(summary))


def _lines(summary: Summary) -> Iterator[str]:
    for cell in summary.cells:
        title = f"kvbench {summary.suite}: {cell.name}"
        if cell.gate.outcome == "not checked":
            yield _command("warning", title, f"NOT CHECKED: {cell.gate.message}")
        elif cell.gate.outcome != "passed":
            yield _command("error", title, f"gate: {cell.gate.outcome}: {cell.gate.message}")
        for comparison in cell.comparisons:
            level = "notice"
            if comparison.verdict is Verdict.INVALID:
                level = "error"
            elif comparison.verdict in (Verdict.SLOWER, Verdict.INCONCLUSIVE):
                level = "warning"
            yield _command(level, title, sentence(comparison, summary.delta))
    if summary.requirement_met is False:
        words = f"--require {summary.requirement} is not met (exit {summary.exit_code})"
        yield _command("error", f"kvbench {summary.suite}", words)


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
