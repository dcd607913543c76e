"""The pictures of gains in report.html: with its interval, by block, along an axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kvbench.analysis.ceiling import ceiling
from kvbench.records import CellSummary, Comparison
from kvbench.report.svg import Scale, Svg, padded, ticks
from kvbench.report.words import interval, percent

BAR_WIDTH, BAR_HEIGHT = 260.0, 22.0
_LABEL = 44.0
"""The widest label of the bars' axis; ratios are drawn by their logarithm, so ticks crowd."""


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


def gain_by_block(comparison: Comparison, delta: float, *, dense: bool = False) -> str:
    """Each block's own gain, with the estimate (a line) and its 95% interval (a band).

    ``dense``: blocks have no tips of their own.
    """
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
    if dense:
        svg.dots([(x(place), y(change)) for place, change in enumerate(changes)], 0, kind)
    for place, (block, change) in enumerate(zip(block_numbers(comparison), changes, strict=True)):
        if not dense:
            svg.mark((x(place), y(change)), 0, f"dot {kind}", f"block {block}: {change:+.2f}%")
        if len(changes) <= 24:
            svg.text((x(place), 156), f"{block}", "tick", "middle")
    svg.text((385, 168), "block", "tick", "middle")
    return svg.render()


def block_numbers(comparison: Comparison) -> Sequence[int]:
    """The number of each of ``comparison.d``, from 1: its block's, or its pair's."""
    count = len(comparison.d)
    names = comparison.blocks if len(comparison.blocks) == count else range(count)
    return [name + 1 for name in names]


def gains_in_words(comparison: Comparison) -> str:
    """Each block's own gain as text."""
    rows = zip(block_numbers(comparison), comparison.d, strict=True)
    return ", ".join(f"{block}: {percent(math.exp(d))}" for block, d in rows)


def gain_axis(scale: Scale) -> str:
    """The axis that the bars of a column share."""
    svg = Svg(BAR_WIDTH, 16, "Axis: change in tokens/s")
    found = ticks((math.exp(scale.low) - 1) * 100, (math.exp(scale.high) - 1) * 100, 4)
    taken: list[float] = []
    for tick in sorted((tick for tick in found if tick > -100), key=abs):
        x = scale(math.log1p(tick / 100))
        svg.line((x, 12), (x, 16), "axis")
        middle = min(max(x, _LABEL / 2), BAR_WIDTH - _LABEL / 2)
        if all(abs(middle - other) >= _LABEL for other in taken):
            taken.append(middle)
            label = f"{tick:+.4g}%" if abs(tick) > 1e-9 else "0%"
            svg.text((middle, 10), label, "tick", "middle")
    return svg.render()


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
