"""The tables on the terminal, 80 columns wide. Colour only on a terminal and without NO_COLOR."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvbench.records import ArmSummary, CellSummary, Comparison, Summary, Verdict
from kvbench.report.ceilings import sentences
from kvbench.report.words import NONE, headline, interval, number, percent, symbol, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDTH = 80

_FIGURES = (("tok/s", 6), ("pass 1", 6), ("pass 2", 6), ("gain", 7), ("95% interval", 18))
"""Headings and the least columns of each."""

STYLES = {
    Verdict.FASTER: "bold green",
    Verdict.SLOWER: "bold red",
    Verdict.EQUIVALENT: "bold cyan",
    Verdict.INCONCLUSIVE: "bold yellow",
    Verdict.INVALID: "bold white on red",
}


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A rich console on stdout or stderr: 80 columns unless the terminal says otherwise."""
    from rich.console import Console

    class Plain(Console):
        """rich would end the program with 1, which means "requirement not met" here."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    if width is None and not stream.isatty():
        width = WIDTH
    return Plain(file=stream, width=width, highlight=False, markup=False, emoji=False)


def print_summary(summary: Summary, out: Console) -> None:
    """The whole experiment: labels, verdict, exactness, both passes, intervals, warnings."""
    from rich.text import Text

    for label in summary.labels:
        out.print(Text(f" {visible(label)} ", style="reverse"))
    out.print(Text(headline(summary), style=_overall_style(summary)))
    out.print(_exactness(summary))
    _print_cells(summary, out)
    for text, style in _remarks(summary):
        out.print(Text(text, style=style))


def _overall_style(summary: Summary) -> str:
    verdicts = {c.verdict for cell in summary.cells for c in cell.comparisons}
    return STYLES[verdicts.pop()] if len(verdicts) == 1 else "bold"


def _exactness(summary: Summary) -> Text:
    from rich.text import Text

    counts: dict[str, int] = {}
    for cell in summary.cells:
        counts[cell.gate.outcome] = counts.get(cell.gate.outcome, 0) + 1
    said = ", ".join(f"{visible(outcome)} ({count})" for outcome, count in counts.items())
    style = "green" if set(counts) == {"passed"} else "red"
    return Text(f"Exactness gate, by cell: {said or NONE}", style=style)


def _print_cells(summary: Summary, out: Console) -> None:
    from rich.text import Text

    widths = _widths(summary)
    for position, cell in enumerate(summary.cells):
        if len(summary.cells) > 1:
            out.print(Text(f"\n{visible(cell.name)}" if position else visible(cell.name), "bold"))
        out.print(_table(cell, widths, headings=position == 0))


def _widths(summary: Summary) -> list[int]:
    """Columns of each figure, the same in every cell's table so that they line up."""
    widths = [width for _, width in _FIGURES]
    for cell in summary.cells:
        speeds = [(*_speeds(arm), "", "") for arm in cell.arms]
        gains = [("", "", "", percent(c.ratio), interval(c.ci95)) for c in cell.comparisons]
        for row in speeds + gains:
            for column, text in enumerate(row):
                widths[column] = max(widths[column], len(text))
    return widths


def _table(cell: CellSummary, widths: Sequence[int], headings: bool) -> Table:
    """One cell's arms."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_header=headings, width=WIDTH)
    table.add_column("arm", ratio=1, overflow="fold")
    for (heading, _), width in zip(_FIGURES, widths, strict=True):
        table.add_column(heading, justify="right", width=width, overflow="fold")
    table.add_column("verdict", width=14)
    compared = {comparison.arm: comparison for comparison in cell.comparisons}
    for arm in cell.arms:
        table.add_row(Text(visible(arm.name)), *_speeds(arm), *_judged(compared.get(arm.name)))
    return table


def _speeds(arm: ArmSummary) -> tuple[str, str, str]:
    first, second = arm.tok_s_passes
    return _speed(arm.tok_s), _speed(first), _speed(second)


def _speed(value: float | None) -> str:
    """Millions with their letter: a simulated device reaches them, and columns are few."""
    return f"{number(value / 1e6)}M" if value is not None and value >= 999_950 else number(value)


def _judged(comparison: Comparison | None) -> tuple[str | Text, ...]:
    from rich.text import Text

    if comparison is None:
        return ("", "", "baseline")
    verdict = comparison.verdict
    return (
        percent(comparison.ratio),
        interval(comparison.ci95),
        Text(f"{symbol(verdict)} {verdict}", style=STYLES[verdict]),
    )


def _whose(comparison: Comparison, cell: CellSummary) -> str:
    return f"{visible(comparison.arm)}: " if len(cell.comparisons) > 1 else ""


def _remarks(summary: Summary) -> list[tuple[str, str]]:
    lines = []
    for cell in summary.cells:
        where = f"{visible(cell.name)}: "
        if cell.gate.outcome != "passed":
            lines.append((f"{where}gate {cell.gate.outcome}: {visible(cell.gate.message)}", "red"))
        lines += [
            (f"{where}{_whose(comparison, cell)}{visible(comparison.reason)}", "")
            for comparison in cell.comparisons
            if comparison.verdict in (Verdict.INVALID, Verdict.INCONCLUSIVE)
        ]
        lines += [(f"{where}{said}", "") for said in sentences(cell, summary.baseline).values()]
        warnings = [*cell.warnings, *(w for c in cell.comparisons for w in c.warnings)]
        lines += [(f"warning: {where}{visible(w.message)}", "yellow") for w in warnings]
    lines += [(f"warning: {visible(w.message)}", "yellow") for w in summary.warnings]
    return lines + [(f"note: {visible(note)}", "dim") for note in summary.notes]
