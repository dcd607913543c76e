"""Where a token's time goes: the arms' own telemetry (T21, level 2) as stacked bars.

An arm that measures it reports ``per_token_ms`` in its telemetry: milliseconds by part, and
``total``. What the parts leave of the total is shown as "other".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvbench.records import ArmSummary
from kvbench.report.svg import Scale, Svg, ticks
from kvbench.report.words import number

OTHER = "other"


@dataclass(frozen=True)
class Breakdown:
    """One arm's milliseconds a token, by part in the order reported; they add up to the total."""

    arm: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        """Milliseconds a token."""
        return sum(self.parts.values())


def breakdowns(arms: Sequence[ArmSummary]) -> list[Breakdown]:
    """The arms that report one, in order."""
    found = []
    for arm in arms:
        reported = arm.plan.get("per_token_ms")
        if isinstance(reported, Mapping):
            parts = _parts(reported)
            if parts:
                found.append(Breakdown(arm.name, parts))
    return found


def _parts(reported: Mapping[str, object]) -> dict[str, float]:
    numbers = {
        str(name): float(value)
        for name, value in reported.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    }
    total = numbers.pop("total", None)
    if total is not None and total > sum(numbers.values()):
        numbers[OTHER] = total - sum(numbers.values())
    return numbers


def part_names(rows: Sequence[Breakdown]) -> list[str]:
    """Every part of any arm, in order of appearance, "other" last."""
    names = dict.fromkeys(name for row in rows for name in row.parts if name != OTHER)
    return [*names, *([OTHER] if any(OTHER in row.parts for row in rows) else [])]


def stacked(rows: Sequence[Breakdown]) -> str:
    """Horizontal bars, one an arm, on one scale of milliseconds a token."""
    if not rows:
        return ""
    height = 30 * len(rows) + 40
    svg = Svg(720, height, "Milliseconds a token by part, one bar an arm", "See the table below.")
    names = part_names(rows)
    longest = max(row.total for row in rows) or 1.0
    x = Scale(0, longest, 150, 690)
    for tick in ticks(0, longest):
        svg.line((x(tick), 4), (x(tick), height - 32), "grid")
        svg.text((x(tick), height - 18), number(tick), "tick", "middle")
    svg.text((420, height - 3), "ms a token", "tick", "middle")
    for line, row in enumerate(rows):
        top, reached = 8.0 + 30 * line, 0.0
        svg.text((142, top + 15), row.arm[:20], "label", "end")
        for index, name in enumerate(names):
            part = row.parts.get(name, 0.0)
            tip = f"{row.arm}, {name}: {number(part)} ms of {number(row.total)}"
            svg.rect((x(reached), top), x(reached + part) - x(reached), 22, f"part{index % 6}", tip)
            reached += part
    return svg.render()
