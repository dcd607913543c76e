"""Where a step's time goes, from a capture: stacked bars of milliseconds, one an arm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvbench.analysis.profile import overlap
from kvbench.records.capture import Capture, tokens
from kvbench.report.svg import Scale, Svg, ticks
from kvbench.report.words import number

PARTS = ("kernels alone", "kernels and copies at once", "copies alone", "neither")


@dataclass(frozen=True)
class Breakdown:
    """One arm's milliseconds a step, in the order of ``PARTS``; they add up to the step."""

    arm: str
    parts: tuple[float, float, float, float]

    @property
    def total(self) -> float:
        """Milliseconds a step."""
        return sum(self.parts)


def breakdowns(captures: Sequence[Capture]) -> list[Breakdown]:
    """The captures whose tokens are marked, in order: every moment is exactly one part."""
    return [_one(capture) for capture in captures if tokens(capture)]


def _one(capture: Capture) -> Breakdown:
    found, steps = overlap(capture), len(tokens(capture))
    neither = found.wall - found.copy - found.compute + found.both
    ns = (found.compute - found.both, found.both, found.copy - found.both, neither)
    kernels, both, copies, rest = (part / steps / 1e6 for part in ns)
    return Breakdown(capture.arm, (kernels, both, copies, rest))


def stacked(rows: Sequence[Breakdown]) -> str:
    """Horizontal bars, one an arm, on one scale of milliseconds a step."""
    if not rows:
        return ""
    height = 30 * len(rows) + 40
    svg = Svg(720, height, "Milliseconds a step by part, one bar an arm", "See the table below.")
    longest = max(row.total for row in rows) or 1.0
    x = Scale(0, longest, 150, 690)
    for tick in ticks(0, longest):
        svg.line((x(tick), 4), (x(tick), height - 32), "grid")
        svg.text((x(tick), height - 18), number(tick), "tick", "middle")
    svg.text((420, height - 3), "ms a step", "tick", "middle")
    for line, row in enumerate(rows):
        top, reached = 8.0 + 30 * line, 0.0
        svg.text((142, top + 15), row.arm[:20], "label", "end")
        for index, (name, part) in enumerate(zip(PARTS, row.parts, strict=True)):
            tip = f"{row.arm}, {name}: {number(part)} ms of {number(row.total)}"
            svg.rect((x(reached), top), x(reached + part) - x(reached), 22, f"part{index}", tip)
            reached += part
    return svg.render()
