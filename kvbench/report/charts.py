"""The pictures of report.html: a gain with its interval, gains along an axis, runs in order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import takewhile

from kvbench.analysis.ceiling import ceiling
from kvbench.records import CellSummary, Comparison, RunValue
from kvbench.report.svg import Scale, Svg, padded, ticks
from kvbench.report.words import interval, number, percent

BAR_WIDTH, BAR_HEIGHT = 260.0, 22.0


def gain_scale(comparisons: Sequence[Comparison], delta: float) -> Scale:
    """One scale of log ratios for all ``comparisons``, so that their bars can be compared."""
    ends = [1 - 2 * delta, 1 + 2 * delta]
    for comparison in comparisons:
        ends += [r for r in (comparison.ratio, *(comparison.ci95 or ())) if r and r > 0]
    low, high = padded([math.log(ratio) for ratio in ends])
    return Scale(low, high, 6, BAR_WIDTH - 6)


def gain_bar(comparison: Comparison, scale: Scale, delta: float) -> str:
    """The estimate, its 95% interval, no change (a line) and ±δ (a band). Empty without one."""
    if comparison.ratio is None or comparison.ratio <= 0:
        return ""
    says = f"{percent(comparison.ratio)}, 95% interval {interval(comparison.ci95)}"
    svg = Svg(BAR_WIDTH, BAR_HEIGHT, says)
    middle = BAR_HEIGHT / 2
    left, right = scale(math.log(1 - delta)), scale(math.log(1 + delta))
    svg.rect((left, 0), right - left, BAR_HEIGHT, "band", f"±{delta:.1%}")
    svg.line((scale(0), 0), (scale(0), BAR_HEIGHT), "zero")
    kind = f"verdict-{comparison.verdict.lower()}"
    if comparison.ci95 and comparison.ci95[0] > 0:
        ends = [scale(math.log(end)) for end in comparison.ci95]
        svg.line((ends[0], middle), (ends[1], middle), f"whisker {kind}")
        for end in ends:
            svg.line((end, middle - 4), (end, middle + 4), f"whisker {kind}")
    svg.mark((scale(math.log(comparison.ratio)), middle), 2, f"dot {kind}", says, 3)
    return svg.render()


def gain_by_block(comparison: Comparison, delta: float) -> str:
    """Each block's own gain, with the estimate (a line) and its 95% interval (a band)."""
    changes = [_change(math.exp(d)) for d in comparison.d]
    if not changes or comparison.ratio is None:
        return ""
    estimate = _change(comparison.ratio)
    ends = [_change(end) for end in comparison.ci95 or (comparison.ratio, comparison.ratio)]
    svg = Svg(
        720,
        170,
        f"Gain of {comparison.arm} by block: {percent(comparison.ratio)}, "
        f"95% interval {interval(comparison.ci95)}",
    )
    low, high = padded([0.0, 100 * delta, -100 * delta, *changes, *ends])
    x, y = Scale(-0.5, len(changes) - 0.5, 62, 708), Scale(low, high, 142, 8)
    svg.rect((62, y(100 * delta)), 646, y(-100 * delta) - y(100 * delta), "shade", f"±{delta:.1%}")
    svg.rect((62, y(ends[1])), 646, y(ends[0]) - y(ends[1]), "band", "95% interval")
    for tick in ticks(low, high):
        svg.line((62, y(tick)), (708, y(tick)), "zero" if abs(tick) < 1e-9 else "grid")
        svg.text((56, y(tick) + 4), f"{tick:+.4g}%" if tick else "0%", "tick", "end")
    kind = f"verdict-{comparison.verdict.lower()}"
    svg.line((62, y(estimate)), (708, y(estimate)), f"whisker {kind}")
    names = comparison.blocks if len(comparison.blocks) == len(changes) else range(len(changes))
    for place, (block, change) in enumerate(zip(names, changes, strict=True)):
        svg.mark((x(place), y(change)), 0, f"dot {kind}", f"block {block + 1}: {change:+.2f}%")
        if len(changes) <= 24:
            svg.text((x(place), 156), f"{block + 1}", "tick", "middle")
    svg.text((385, 168), "block", "tick", "middle")
    return svg.render()


def gain_axis(scale: Scale) -> str:
    """The axis that the bars of a column share."""
    svg = Svg(BAR_WIDTH, 16, "Axis: change in tokens/s")
    for tick in ticks((math.exp(scale.low) - 1) * 100, (math.exp(scale.high) - 1) * 100, 4):
        if tick > -100:
            x = scale(math.log1p(tick / 100))
            svg.line((x, 12), (x, 16), "axis")
            svg.text((min(max(x, 14), BAR_WIDTH - 14), 10), f"{tick:+.4g}%", "tick", "middle")
    return svg.render()


def runs_in_order(cell: CellSummary, arms: Mapping[str, int]) -> str:
    """Every run's value in run order; blocks are separated, second passes shaded."""
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
    x = Scale(0, max(len(cell.runs) - 1, 1), 62, 708)
    y = Scale(low, high, 172, 10)
    half = (x(1) - x(0)) / 2
    for tick in ticks(low, high):
        svg.line((62 - half, y(tick)), (708 + half, y(tick)), "grid")
        svg.text((54 - half, y(tick) + 4), number(tick), "tick", "end")
    for place, run in enumerate(cell.runs):
        _run(svg, cell.runs, place, (x(place), half, y), arms.get(run.arm, 0))
    svg.text((385, 197), "run order, block by block", "tick", "middle")
    return svg.render()


def _run(
    svg: Svg, runs: Sequence[RunValue], place: int, at: tuple[float, float, Scale], arm: int
) -> None:
    run = runs[place]
    x, half, y = at
    previous = runs[place - 1] if place else None
    if run.pass_ == 1 and (previous is None or previous.pass_ == 0):
        length = sum(1 for _ in takewhile(lambda later: later.pass_ == 1, runs[place:]))
        svg.rect((x - half, 10), 2 * half * length, 162, "shade")
    if previous is None or (previous.block, previous.attempt) != (run.block, run.attempt):
        svg.line((x - half, 10), (x - half, 172), "separator")
        svg.text((x - half + 3, 183), f"{run.block + 1}{'′' * run.attempt}", "tick")
    says = describe(run)
    if run.tok_s is None:
        svg.text((x, 168), "✗", "failed", "middle")
        return
    if run.outlier:
        svg.mark((x, y(run.tok_s)), 0, "ring", size=8)
    kind = f"dot arm{arm % 6}" + ("" if run.counted else " hollow")
    svg.mark((x, y(run.tok_s)), arm, kind, says)


def describe(run: RunValue) -> str:
    """One run in words."""
    value = f"{number(run.tok_s, 5)} tok/s" if run.tok_s is not None else f"failed: {run.failure}"
    extra = [] if run.counted else ["not counted"]
    extra += ["outlier"] if run.outlier else []
    where = f"run {run.order + 1}, block {run.block + 1}, pass {run.pass_ + 1}, {run.arm}"
    return f"{where}: {'; '.join([value, *extra, *run.violations])}"


def numeric_axis(cells: Sequence[CellSummary]) -> str | None:
    """The grid axis with the most distinct numbers, at least two; None if there is none."""
    counts: dict[str, int] = {}
    for axis in dict.fromkeys(axis for cell in cells for axis in cell.axes):
        values = [cell.axes.get(axis) for cell in cells]
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            counts[axis] = len(set(values))
    best = max(counts, key=lambda axis: counts[axis], default=None)
    return best if best is not None and counts[best] > 1 else None


def gain_along(
    axis: str, cells: Sequence[CellSummary], arms: Mapping[str, int], title: str, baseline: str
) -> str:
    """Gain of every arm along ``axis`` with 95% intervals, over cells that differ in it alone.

    Dashed: the most that a pipeline could gain, where that is known.
    """
    series: dict[str, list[tuple[float, Comparison]]] = {}
    for cell in sorted(cells, key=lambda cell: float(cell.axes[axis])):
        for comparison in cell.comparisons:
            if comparison.ratio:
                point = (float(cell.axes[axis]), comparison)
                series.setdefault(comparison.arm, []).append(point)
    points = [point for line in series.values() for point in line]
    if not points:
        return ""
    most = _ceilings(axis, cells, baseline)
    svg = Svg(
        720, 260, title, f"Gain against the baseline along {axis}; the table has the figures."
    )
    x, y = _gain_axes(svg, axis, points, [ratio for _, ratio in most])
    svg.path([(x(at), y(_change(ratio))) for at, ratio in most], "ceiling")
    for at, ratio in most:
        svg.mark(
            (x(at), y(_change(ratio))), 1, "ceiling", f"ceiling at {at:g}: {percent(ratio)}", 2
        )
    for arm, line in series.items():
        kind = f"arm{arms.get(arm, 0) % 6}"
        svg.path([(x(at), y(_change(c.ratio))) for at, c in line], f"curve {kind}")
        for at, comparison in line:
            if comparison.ci95:
                low, high = (y(_change(end)) for end in comparison.ci95)
                svg.line((x(at), low), (x(at), high), f"whisker {kind}")
            says = f"{arm}, {axis} {at:g}: {percent(comparison.ratio)} {comparison.verdict}"
            svg.mark((x(at), y(_change(comparison.ratio))), arms.get(arm, 0), f"dot {kind}", says)
    return svg.render()


def _ceilings(axis: str, cells: Sequence[CellSummary], baseline: str) -> list[tuple[float, float]]:
    known = ((cell, ceiling(cell, baseline)) for cell in cells)
    return sorted((float(cell.axes[axis]), most.ratio) for cell, most in known if most)


def _change(ratio: float | None) -> float:
    return ((ratio or 1.0) - 1) * 100


def _gain_axes(
    svg: Svg, axis: str, points: Sequence[tuple[float, Comparison]], ceilings: Sequence[float]
) -> tuple[Scale, Scale]:
    places = sorted({at for at, _ in points})
    changes = [0.0, *(_change(ratio) for ratio in ceilings)]
    for _, comparison in points:
        changes += [_change(r) for r in (comparison.ratio, *(comparison.ci95 or ()))]
    low, high = padded(changes)
    y = Scale(low, high, 212, 12)
    log = places[0] > 0 and places[-1] / places[0] >= 8
    x = Scale(places[0], places[-1], 84, 692, log=log)
    for tick in ticks(low, high):
        svg.line((62, y(tick)), (708, y(tick)), "zero" if abs(tick) < 1e-9 else "grid")
        svg.text((56, y(tick) + 4), f"{tick:+.4g}%" if tick else "0%", "tick", "end")
    last = -math.inf
    for place in places:
        if x(place) - last >= 52:
            svg.text((x(place), 230), f"{place:,.10g}", "tick", "middle")
            last = x(place)
    svg.text((385, 252), axis, "label", "middle")
    return x, y
