"""A profile as tables: the same for the terminal, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kvbench.analysis import profile
from kvbench.records.capture import Capture
from kvbench.report.markdown import code
from kvbench.report.markdown import table as markdown_table
from kvbench.report.words import NONE, number, visible

if TYPE_CHECKING:
    from rich.console import Console

MAX_DIFF_LINES = 60


@dataclass(frozen=True)
class Table:
    """A titled table; the first column is text, the others are numbers unless ``prose``."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    prose: bool = False


def tables(captures: Sequence[Capture]) -> list[Table]:
    """Every table of a profile whose first capture is the baseline; empty ones are left out."""
    baseline, *others = captures
    found = [_calls(captures, baseline, arm) for arm in others] or [_calls_of(baseline)]
    found += [_waits(captures), _overlap(captures)]
    found += [_gaps(capture) for capture in captures]
    found += [_ranges(capture) for capture in captures]
    found += [_order(baseline, arm) for arm in others]
    found.append(_absent(captures))
    return [table for table in found if table.rows]


def _ms(nanoseconds: float) -> str:
    return number(nanoseconds / 1e6)


def _spent(nanoseconds: float) -> str:
    """Time in API calls; none at all means that the source does not time them."""
    return _ms(nanoseconds) if nanoseconds else NONE


def _per(count: float, tokens: int | None, digits: int = 3) -> str:
    return number(count / tokens, digits) if tokens else NONE


def _calls(captures: Sequence[Capture], baseline: Capture, arm: Capture) -> Table:
    rows = []
    for row in profile.call_table(captures):
        before, after = row.arms[baseline.arm], row.arms[arm.arm]
        change = row.change(arm.arm, baseline.arm)
        said = NONE if change is None else "=" if change == 0 else f"{change:+.1f}%"
        counts = (f"{before.calls:,}", f"{after.calls:,}", said)
        per_token = (_per(before.calls, baseline.tokens), _per(after.calls, arm.tokens))
        rows.append((row.name, *counts, *per_token, _spent(before.ns), _spent(after.ns)))
    title = f"API calls: {visible(baseline.arm)} (A), {visible(arm.arm)} (B)"
    headings = ("API", "A", "B", "change", "A/token", "B/token", "A ms", "B ms")
    return Table(title, headings, tuple(rows))


def _calls_of(capture: Capture) -> Table:
    rows = []
    for row in profile.call_table([capture]):
        count = row.arms[capture.arm]
        each = _per(count.ns / 1e6, capture.tokens) if count.ns else NONE
        calls = (f"{count.calls:,}", _per(count.calls, capture.tokens))
        rows.append((row.name, *calls, _spent(count.ns), each))
    title = f"API calls: {visible(capture.arm)}"
    return Table(title, ("API", "calls", "/token", "ms", "ms/token"), tuple(rows))


def _waits(captures: Sequence[Capture]) -> Table:
    sites = dict.fromkeys(site for capture in captures for site in capture.waits)
    rows = [(site, *(_triple(capture.waits.get(site)) for capture in captures)) for site in sites]
    headings = ("site", *(visible(capture.arm) for capture in captures))
    return Table(
        "Waits by call site, warm-up included (made / elided / redundant)", headings, tuple(rows)
    )


def _triple(counts: tuple[int, int, int] | None) -> str:
    return NONE if counts is None else " / ".join(f"{count:,}" for count in counts)


def _overlap(captures: Sequence[Capture]) -> Table:
    rows = []
    for capture in captures:
        found = profile.overlap(capture)
        shares = (_share(found.fraction), _share(found.possible))
        times = (_ms(found.copy), _ms(found.compute), _ms(found.both), _ms(found.wall))
        if found.copy or found.compute:
            rows.append((visible(capture.arm), *times, *shares))
    headings = ("arm", "copy ms", "compute ms", "both ms", "wall ms", "of copy", "of possible")
    return Table("Copies beside kernels", headings, tuple(rows))


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}"


def _gaps(capture: Capture) -> Table:
    rows = tuple((_ms(g.ns), visible(g.cause)) for g in profile.longest_gaps(capture))
    title = f"Longest gaps between kernels: {visible(capture.arm)}"
    return Table(title, ("ms", "what ended it"), rows, prose=True)


def _ranges(capture: Capture) -> Table:
    rows = tuple(
        (visible(r.name), f"{r.count:,}", _ms(r.ns), _ms(r.ns / r.count))
        for r in profile.range_sums(capture)
    )
    return Table(f"Ranges: {visible(capture.arm)}", ("range", "count", "ms", "ms each"), rows)


def _order(baseline: Capture, arm: Capture) -> Table:
    diff = profile.order_diff(baseline, arm)
    title = f"Order of API calls over one token: - {visible(baseline.arm)}, + {visible(arm.arm)}"
    if diff is None:
        return Table(title, ("",), (("tokens are not marked in both captures",),), prose=True)
    if diff.same:
        return Table(title, ("",), (("the same",),), prose=True)
    lines = [(visible(line),) for line in diff.lines[:MAX_DIFF_LINES]]
    if len(diff.lines) > MAX_DIFF_LINES:
        lines.append((f"… and {len(diff.lines) - MAX_DIFF_LINES} more lines (--json has all)",))
    return Table(title, ("",), tuple(lines), prose=True)


def _absent(captures: Sequence[Capture]) -> Table:
    rows = tuple(
        (visible(capture.arm), f"{visible(what)}: {visible(why)}")
        for capture in captures
        for what, why in capture.absent.items()
    )
    return Table("Not in these captures (absent is not zero)", ("arm", "what"), rows, prose=True)


def print_tables(found: Sequence[Table], out: Console) -> None:
    """On the terminal."""
    from rich.table import Table as RichTable
    from rich.text import Text

    for each in found:
        out.print(Text(f"\n{each.title}", style="bold"))
        drawn = RichTable(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        drawn.show_header = any(each.headings)
        for column, heading in enumerate(each.headings):
            right = not each.prose and column > 0
            drawn.add_column(heading, justify="right" if right else "left", overflow="fold")
        for row in each.rows:
            drawn.add_row(*(Text(cell) for cell in row))
        out.print(drawn)


def markdown(found: Sequence[Table]) -> str:
    """For a pull request."""
    parts = []
    for each in found:
        right = () if each.prose else range(1, len(each.headings))
        rows = [[code(row[0]), *(code(cell) for cell in row[1:])] for row in each.rows]
        parts.append(f"#### {code(each.title)}\n\n{markdown_table(each.headings, rows, right)}")
    return "\n\n".join(parts) + "\n"


def as_document(captures: Sequence[Capture]) -> dict[str, Any]:
    """Plain data for ``--json``: full, with nothing rounded."""
    baseline, *others = captures
    diffs = {arm.arm: profile.order_diff(baseline, arm) for arm in others}
    return {
        "baseline": baseline.arm,
        "calls": [asdict(row) for row in profile.call_table(captures)],
        "order": {arm: asdict(diff) if diff else None for arm, diff in diffs.items()},
        "arms": [
            {
                "arm": capture.arm,
                "source": capture.source,
                "tool": capture.tool,
                "tokens": capture.tokens,
                "waits": capture.waits,
                "overlap": asdict(profile.overlap(capture)),
                "gaps": [asdict(gap) for gap in profile.longest_gaps(capture)],
                "ranges": [asdict(each) for each in profile.range_sums(capture)],
                "absent": capture.absent,
            }
            for capture in captures
        ],
    }
