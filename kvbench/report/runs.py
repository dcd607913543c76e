"""Every run of a cell: a picture in run order, and a table.

Both have a dense form for sweeps of many runs: the picture has one element an arm instead of one
a run, the table is aligned text. Neither leaves out a run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import groupby

from kvbench.records import CellSummary, RunValue
from kvbench.report.svg import Point, Scale, Svg, padded, ticks
from kvbench.report.words import NONE, number, visible

_TOP, _BOTTOM, _LEFT, _RIGHT = 10.0, 172.0, 62.0, 708.0
_LABELS = 24
"""Most block numbers that have room below a picture."""


def runs_in_order(cell: CellSummary, arms: Mapping[str, int], *, dense: bool = False) -> str:
    """Every run's value in run order; blocks are separated, second passes shaded.

    ``dense``: runs without a remark have no tip of their own.
    """
    values = [run.tok_s for run in cell.runs if run.tok_s is not None]
    if not values:
        return ""
    svg = Svg(
        720,
        200,
        f"Tokens/s of {len(cell.runs)} runs of {cell.name} in run order",
        "Shaded: the second pass of a block. Hollow: not counted. Ringed: outlier. "
        "The same values stand in the table of runs.",
    )
    low, high = padded(values)
    x = Scale(-0.5, len(cell.runs) - 0.5, _LEFT, _RIGHT)
    y = Scale(low, high, _BOTTOM, _TOP)
    half = (x(1) - x(0)) / 2
    for tick in ticks(low, high):
        svg.line((_LEFT, y(tick)), (_RIGHT, y(tick)), "grid")
        svg.text((_LEFT - 6, y(tick) + 4), number(tick), "tick", "end")
    _passes_and_blocks(svg, cell.runs, x, half)
    plain: dict[str, list[Point]] = {}
    for place, run in enumerate(cell.runs):
        if run.tok_s is not None and dense and not any(_remarks(run)):
            plain.setdefault(run.arm, []).append((x(place), y(run.tok_s)))
        else:
            _mark(svg, run, x(place), y, arms.get(run.arm, 0))
    for arm, points in plain.items():
        number_of_arm = arms.get(arm, 0)
        svg.dots(points, number_of_arm, f"arm{number_of_arm % 6}")
    svg.text((385, 197), "run order, block by block", "tick", "middle")
    return svg.render()


def _passes_and_blocks(svg: Svg, runs: Sequence[RunValue], x: Scale, half: float) -> None:
    height = _BOTTOM - _TOP
    passes = _spans(runs, lambda run: (run.block, run.attempt, run.pass_))
    for first, count in passes:
        if runs[first].pass_ == 1:
            svg.rect((x(first) - half, _TOP), 2 * half * count, height, "shade")
    blocks = list(_spans(runs, lambda run: (run.block, run.attempt)))
    svg.lines(
        [((x(at) - half, _TOP), (x(at) - half, _BOTTOM)) for at, _ in blocks],
        "separator",
    )
    for at, _ in blocks[:: -(-len(blocks) // _LABELS)]:
        name = f"{runs[at].block + 1}{'′' * runs[at].attempt}"
        svg.text((x(at) - half + 3, _BOTTOM + 11), name, "tick")


def _spans(
    runs: Sequence[RunValue], key: Callable[[RunValue], Hashable]
) -> Iterator[tuple[int, int]]:
    """(first place, number) of neighbouring runs with the same key."""
    place = 0
    for _, group in groupby(runs, key=key):
        count = sum(1 for _ in group)
        yield place, count
        place += count


def _mark(svg: Svg, run: RunValue, x: float, y: Scale, arm: int) -> None:
    if run.tok_s is None:
        svg.text((x, _BOTTOM - 4), "✗", "failed", "middle")
        return
    if run.outlier:
        svg.mark((x, y(run.tok_s)), 0, "ring", size=8)
    kind = f"dot arm{arm % 6}" + ("" if run.counted else " hollow")
    svg.mark((x, y(run.tok_s)), arm, kind, describe(run))


def describe(run: RunValue) -> str:
    """One run in words."""
    value = f"{number(run.tok_s, 5)} tok/s" if run.tok_s is not None else f"failed: {run.failure}"
    remarks = [remark for remark in _remarks(run) if not remark.startswith("failed")]
    where = f"run {run.order + 1}, block {run.block + 1}, pass {run.pass_ + 1}, {run.arm}"
    return f"{where}: {'; '.join([value, *remarks])}"


def _remarks(run: RunValue) -> tuple[str, ...]:
    """What is to be said about a run; mostly nothing."""
    if run.counted and not run.outlier and run.failure is None and not run.violations:
        return ()
    words = ("not counted" * (not run.counted), "outlier" * run.outlier)
    failed = f"failed: {run.failure}" if run.failure is not None else ""
    return tuple(filter(None, (*words, failed, *run.violations)))


def runs_as_text(cell: CellSummary) -> str:
    """The table of runs as aligned lines, control characters made visible."""
    wide = max(len("arm"), *(len(visible(arm.name)) for arm in cell.arms))
    names = {arm.name: visible(arm.name).ljust(wide) for arm in cell.arms}
    lines = [f"   run  block  attempt  pass  {'arm'.ljust(wide)}       tok/s  remarks"]
    for run in cell.runs:
        value = NONE if run.tok_s is None else f"{run.tok_s:.6g}"
        lines.append(
            f"{run.order + 1:6}  {run.block + 1:5}  {run.attempt + 1:7}  {run.pass_ + 1:4}  "
            f"{names[run.arm]}  {value:>10}  {visible('; '.join(_remarks(run)))}".rstrip()
        )
    return "\n".join(lines)
