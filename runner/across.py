"""Stored experiments side by side: ``kvbench compare`` and ``kvbench history``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kvbench.analysis.across import GainChange, change_points, compare_gains
from kvbench.environment.comparable import differences
from kvbench.errors import UsageError
from kvbench.records import CellSummary, Comparison, Summary, Verdict
from runner.store import load_summary


class ComparedArm(NamedTuple):
    """One arm of one cell in both experiments."""

    cell: str
    arm: str
    before: Comparison
    after: Comparison
    change: GainChange | None
    """None where one of the two is INVALID or has no interval."""
    speeds: tuple[float | None, float | None]


def compare_runs(before: Summary, after: Summary) -> list[ComparedArm]:
    """Every arm that both experiments have, by cell.

    Raises ``UsageError`` that names the first field for which they are not comparable.
    """
    _refuse_incomparable(before, after)
    found = []
    for one in before.cells:
        two = next(cell for cell in after.cells if cell.name == one.name)
        later = {comparison.arm: comparison for comparison in two.comparisons}
        for comparison in one.comparisons:
            other = later.get(comparison.arm)
            if other is not None:
                speeds = (_speed(one, comparison.arm), _speed(two, comparison.arm))
                change = _change(comparison, other, after.delta)
                found.append(
                    ComparedArm(one.name, comparison.arm, comparison, other, change, speeds)
                )
    if not found:
        raise UsageError(f"{before.run} and {after.run}: not comparable: they share no arm")
    return found


def _refuse_incomparable(before: Summary, after: Summary) -> None:
    pair = f"{before.run} and {after.run}: not comparable"
    for name, old, new in differences(before.environment, after.environment):
        raise UsageError(f"{pair}: environment {name}: {old!r} against {new!r}")
    for name, old, new in (
        ("baseline", before.baseline, after.baseline),
        ("cells", _names(before), _names(after)),
    ):
        if old != new:
            raise UsageError(f"{pair}: {name}: {old!r} against {new!r}")
    for one in before.cells:
        two = next(cell for cell in after.cells if cell.name == one.name)
        for where, old, new in _cell_fields(one, two):
            if old != new:
                raise UsageError(f"{pair}: {one.name}: {where}: {old!r} against {new!r}")


def _names(summary: Summary) -> list[str]:
    return sorted(cell.name for cell in summary.cells)


def _cell_fields(one: CellSummary, two: CellSummary) -> list[tuple[str, object, object]]:
    fields: list[tuple[str, object, object]] = [
        (f"workload.{key}", one.workload.get(key), two.workload.get(key))
        for key in sorted({*one.workload, *two.workload})
    ]
    stated = one.link.get("source") == "stated"
    for key in ("source", "ratio", *(["bytes_per_s"] if stated else [])):
        fields += [(f"link.{key}", one.link.get(key), two.link.get(key))]
    return fields


def _speed(cell: CellSummary, arm: str) -> float | None:
    return next(each.tok_s for each in cell.arms if each.name == arm)


def _change(before: Comparison, after: Comparison, delta: float) -> GainChange | None:
    usable = all(c.verdict is not Verdict.INVALID and len(c.d) >= 2 for c in (before, after))
    return compare_gains(before.d, after.d, delta) if usable else None


class Point(NamedTuple):
    """One experiment in a cell's history."""

    run: str
    started: float
    comparison: Comparison
    speed: float | None
    step: bool
    """The gain steps here against what came before."""
    changed: tuple[str, ...]
    """Fields of environment and workload that changed since the point before: a step there need
    not come from the arm."""


def history(root: Path, suite: str, cell: str | None, arm: str | None) -> list[Point]:
    """A cell's experiments in order of time. Raises ``UsageError`` if there are none, or several
    cells or arms to choose from."""
    found = []
    for path in sorted(root.glob("*/summary.json")):
        summary = load_summary(path.parent)
        if summary.suite == suite:
            found.append(summary)
    if not found:
        raise UsageError(f"{root}: no stored experiment of suite {suite!r}")
    cell = _choose("cell", cell, [c.name for s in found for c in s.cells])
    arm = _choose(
        "arm", arm, [x.arm for s in found for c in s.cells if c.name == cell for x in c.comparisons]
    )
    found.sort(key=lambda summary: summary.started)
    rows = [(s, c, x) for s in found for c, x in _of(s, cell, arm)]
    steps = _steps([x.ratio for _, _, x in rows], rows[-1][0].delta)
    points = []
    before: tuple[Summary, CellSummary] | None = None
    for index, (summary, where, comparison) in enumerate(rows):
        changed = () if before is None else _changed(*before, summary, where)
        speed = _speed(where, comparison.arm)
        point = Point(summary.run, summary.started, comparison, speed, index in steps, changed)
        points.append(point)
        before = summary, where
    return points


def _steps(ratios: Sequence[float | None], delta: float) -> set[int]:
    """Places at which the gain steps; what has no gain (INVALID) is passed over."""
    rated = [(place, ratio) for place, ratio in enumerate(ratios) if ratio is not None]
    found = change_points([math.log(ratio) for _, ratio in rated], delta) if rated else []
    return {rated[index][0] for index in found}


def _changed(
    before: Summary, old: CellSummary, after: Summary, new: CellSummary
) -> tuple[str, ...]:
    fields = [name for name, _, _ in differences(before.environment, after.environment)]
    fields += [name for name, one, two in _cell_fields(old, new) if one != two]
    return (*fields, *(["baseline"] if before.baseline != after.baseline else []))


def _of(summary: Summary, cell: str, arm: str) -> list[tuple[CellSummary, Comparison]]:
    return [
        (each, comparison)
        for each in summary.cells
        if each.name == cell
        for comparison in each.comparisons
        if comparison.arm == arm
    ]


def _choose(what: str, wanted: str | None, there: Sequence[str]) -> str:
    names = list(dict.fromkeys(there))
    if wanted is not None:
        if wanted not in names:
            raise UsageError(f"--{what}: {wanted!r} is not there; there are {', '.join(names)}")
        return wanted
    if len(names) != 1:
        raise UsageError(f"--{what}: choose one of {', '.join(names)}")
    return names[0]
