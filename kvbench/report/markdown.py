"""report.md: a summary that can be pasted into a pull request.

Every string from outside stands in a code span, so that it can neither format, mention nor link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from kvbench.records import CellSummary, Summary
from kvbench.report import repeat
from kvbench.report.ceilings import sentences
from kvbench.report.differences import common, differing, flatten, program_of, settings_of
from kvbench.report.waits import wait_table
from kvbench.report.words import NONE, headline, interval, number, percent, symbol, visible

VALUES_SHOWN = 400
"""Raw runs are listed up to this many; beyond it they are in summary.json alone."""


def render_markdown(summary: Summary) -> str:
    """The report as GitHub-flavoured Markdown, ended by a newline."""
    parts = [
        f"### kvbench: {plain(summary.description or summary.suite)}",
        *(f"**{plain(label)}**" for label in summary.labels),
        f"**{plain(headline(summary))}**",
        _speeds(summary),
        _exactness(summary),
        _remarks(summary),
        _details("Waits of the host, and conversations", _waits(summary)),
        _details("Every run, in the order in which it was made", _runs(summary)),
        _details("Settings", _settings(summary)),
        _details("Environment", _environment(summary)),
        _details("How to repeat it", _repeat(summary)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def plain(text: object) -> str:
    """Running text with everything neutralised that Markdown, HTML or GitHub would act upon."""
    escaped = re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", visible(text))
    return escaped.replace("@", "@\u200b").replace("://", ":\u200b//")


def code(text: object) -> str:
    """A code span that holds any text, also inside a table."""
    shown = visible(text)
    if not shown:
        return NONE
    fence = _fence(shown, shortest=1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}".replace("|", "\\|")


def _fence(text: str, shortest: int) -> str:
    """Backticks that no run of backticks in ``text`` can close."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    return "`" * max(longest + 1, shortest)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table; columns whose index is in ``right`` are right-aligned. Empty without rows."""
    body = [f"| {' | '.join(row)} |" for row in rows]
    if not body:
        return ""
    rule = ["---:" if column in right else "---" for column in range(len(headings))]
    return "\n".join([f"| {' | '.join(headings)} |", f"| {' | '.join(rule)} |", *body])


def _details(title: str, content: str) -> str:
    if not content:
        return ""
    return f"<details><summary>{title}</summary>\n\n{content}\n\n</details>"


def _waits(summary: Summary) -> str:
    headings, rows = wait_table(summary)
    shown = [[code(cell), code(arm), *rest] for cell, arm, *rest in rows]
    return table(headings, shown, right=range(2, len(headings)))


def _speeds(summary: Summary) -> str:
    rows = [row for cell in summary.cells for row in _cell_rows(cell)]
    headings = ["cell", "arm", "tok/s", "pass 1", "pass 2", "gain", "95% interval", "verdict"]
    note = (
        f"Geometric means over runs; a pass is one half of every ABBA block. Intervals are not "
        f"adjusted for the number of cells. δ = {summary.delta:.1%}."
    )
    drawn = table(headings, rows, right=(2, 3, 4, 5, 6))
    return f"{drawn}\n\n{note}" if drawn else ""


def _cell_rows(cell: CellSummary) -> list[list[str]]:
    compared = {comparison.arm: comparison for comparison in cell.comparisons}
    rows = []
    for arm in cell.arms:
        judged = ["", "", "baseline"]
        if (comparison := compared.get(arm.name)) is not None:
            verdict = comparison.verdict
            judged = [
                percent(comparison.ratio),
                interval(comparison.ci95),
                f"{symbol(verdict)} **{verdict}**",
            ]
        speeds = [number(arm.tok_s), *(number(value) for value in arm.tok_s_passes)]
        rows.append([code(cell.name), code(arm.name), *speeds, *judged])
    return rows


def _exactness(summary: Summary) -> str:
    passed = [cell for cell in summary.cells if cell.gate.outcome == "passed"]
    lines = [f"**Exactness:** {len(passed)} of {len(summary.cells)} cells passed their gate."]
    lines += [
        f"- {code(cell.name)} {plain(cell.gate.outcome)}: {code(cell.gate.message)}"
        for cell in summary.cells
        if cell.gate.outcome != "passed"
    ]
    return "\n".join(lines)


def _remarks(summary: Summary) -> str:
    lines = []
    for cell in summary.cells:
        lines += [f"{code(cell.name)} {code(c.arm)}: {plain(c.reason)}" for c in cell.comparisons]
        ceilings = sentences(cell, summary.baseline).values()
        lines += [f"{code(cell.name)}: {plain(said)}" for said in ceilings]
        warnings = [*cell.warnings, *(w for c in cell.comparisons for w in c.warnings)]
        lines += [f"⚠ {code(cell.name)}: {plain(warning.message)}" for warning in warnings]
    lines += [f"⚠ {plain(warning.message)}" for warning in summary.warnings]
    lines += [f"note: {plain(note)}" for note in summary.notes]
    return "\n".join(f"- {line}" for line in lines)


def _runs(summary: Summary) -> str:
    total = sum(len(cell.runs) for cell in summary.cells)
    if total > VALUES_SHOWN:
        return f"{total} runs: see `summary.json`."
    rows = [
        [
            str(run.order + 1),
            code(cell.name),
            str(run.block + 1),
            str(run.pass_ + 1),
            code(run.arm),
            number(run.tok_s, 6),
            plain("; ".join(_flags(run.counted, run.outlier, run.failure, run.violations))),
        ]
        for run, cell in sorted(
            ((run, cell) for cell in summary.cells for run in cell.runs),
            key=lambda each: each[0].order,
        )
    ]
    headings = ["run", "cell", "block", "pass", "arm", "tok/s", "remarks"]
    return table(headings, rows, right=(0, 2, 3, 5))


def _flags(
    counted: bool, outlier: bool, failure: str | None, violations: tuple[str, ...]
) -> list[str]:
    flags = [] if counted else ["not counted"]
    if outlier:
        flags.append("outlier")
    if failure:
        flags.append(f"failed: {failure}")
    return flags + list(violations)


def _settings(summary: Summary) -> str:
    if not summary.cells:
        return ""
    arms = summary.cells[0].arms
    columns = [settings_of(arm) for arm in arms]
    names = [code(arm.name) for arm in arms]
    differ = table(
        ["differs", *names],
        [[code(name), *(code(value) for value in values)] for name, values in differing(columns)],
    )
    same = table(["the same in all arms", ""], [[code(n), code(v)] for n, v in common(columns)])
    return "\n\n".join(part for part in (differ, same) if part)


def _environment(summary: Summary) -> str:
    rows = [[code(name), code(value)] for name, value in flatten(summary.environment).items()]
    machine = table(["fingerprint " + code(summary.environment_hash[:12]), ""], rows)
    arms = summary.cells[0].arms if summary.cells else ()
    programs = differing([program_of(arm) for arm in arms])
    differ = table(
        ["differs between arms", *(code(arm.name) for arm in arms)],
        [[code(name), *(code(value) for value in values)] for name, values in programs],
    )
    return "\n\n".join(part for part in (differ, machine) if part)


def _repeat(summary: Summary) -> str:
    steps = repeat.commands(summary)
    lines = [line for what, command in steps for line in (f"# {what}", visible(command))]
    fence = _fence("\n".join(lines), shortest=3)
    return "\n".join([f"{fence}sh", *lines, fence])
