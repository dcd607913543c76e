"""From a suite's grid to its cells.

Axes: ``workload.FIELD``, ``link.FIELD``, ``model``, ``settings.KEY`` (every arm) and
``arms.NAME.KEY`` (one arm's setting).
"""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from kvbench.errors import UsageError
from kvbench.spec.suite import ArmSpec, LinkSpec, Suite, Workload

MAX_CELLS = 20_000
MAX_NAME = 120
"""Characters of a cell's name; a longer one is cut and ends in a digest of itself."""
_SINGLE = "main"


@dataclass(frozen=True)
class Cell:
    """One point of the grid with everything resolved but the link's calibration."""

    name: str
    axes: dict[str, Any]
    arms: tuple[ArmSpec, ...]
    workload: Workload
    model: str
    link: LinkSpec | None

    def arm(self, name: str) -> ArmSpec:
        """The arm called ``name`` with this cell's settings."""
        return next(arm for arm in self.arms if arm.name == name)


def expand(suite: Suite, source: str) -> tuple[Cell, ...]:
    """Every cell of ``suite`` that no exclusion names, in grid order (last axis fastest).

    Raises ``UsageError`` that names ``source`` and the axis for an axis or value that cannot be,
    an exclusion that names no axis or matches nothing, or a grid that is empty or too large.
    """
    _check_axes(suite, source)
    size = 1
    for values in suite.grid.values():
        size *= len(values)
    if size > MAX_CELLS:
        raise UsageError(f"{source}: grid: {size} cells; at most {MAX_CELLS} are allowed")
    used = [False] * len(suite.exclude)
    cells = []
    for combination in itertools.product(*suite.grid.values()):
        point = dict(zip(suite.grid, combination, strict=True))
        hits = [number for number, rule in enumerate(suite.exclude) if _matches(rule, point)]
        for number in hits:
            used[number] = True
        if not hits:
            cells.append(_cell(suite, point, source))
    for number, hit in enumerate(used):
        if not hit:
            raise UsageError(
                f"{source}: exclude[{number}]: {suite.exclude[number]} matches no cell of the grid"
            )
    if not cells:
        raise UsageError(f"{source}: exclude: every cell of the grid is excluded")
    _check_names(cells, source)
    return tuple(cells)


def _check_names(cells: list[Cell], source: str) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.name, cell)
        if other is not cell:
            raise UsageError(
                f"{source}: grid: {other.axes} and {cell.axes} have one name, {cell.name!r}"
            )


def _check_axes(suite: Suite, source: str) -> None:
    arms = {arm.name for arm in suite.arms}
    for axis, values in suite.grid.items():
        _known_axis(axis, arms, source)
        if not values:
            raise UsageError(f"{source}: grid.{axis}: has no values; give at least one")
        seen: set[str] = set()
        for value in values:
            if repr(value) in seen:
                raise UsageError(f"{source}: grid.{axis}: {value!r} appears twice")
            seen.add(repr(value))
    for number, rule in enumerate(suite.exclude):
        if not rule:
            raise UsageError(f"{source}: exclude[{number}]: names no axis")
        for axis in rule:
            if axis not in suite.grid:
                allowed = ", ".join(suite.grid) or "none, the suite has no grid"
                raise UsageError(
                    f"{source}: exclude[{number}].{axis}: not an axis of the grid ({allowed})"
                )


def _known_axis(axis: str, arms: set[str], source: str) -> None:
    head, _, rest = axis.partition(".")
    fields = {"workload": Workload.__struct_fields__, "link": LinkSpec.__struct_fields__}
    if axis == "model" or (head in fields and rest in fields[head]):
        return
    if head == "settings" and rest:
        return
    if head == "arms":
        name = rest.rpartition(".")[0]
        if name in arms:
            return
    raise UsageError(
        f"{source}: grid.{axis}: not an axis; allowed are workload.FIELD, link.gb_s, link.ratio, "
        f"model, settings.KEY and arms.NAME.KEY with NAME one of {', '.join(sorted(arms))}"
    )


def _matches(rule: dict[str, Any], point: dict[str, Any]) -> bool:
    return all(
        point[axis] in wanted if isinstance(wanted, list) else point[axis] == wanted
        for axis, wanted in rule.items()
    )


def _cell(suite: Suite, point: dict[str, Any], source: str) -> Cell:
    parts: dict[str, Any] = {"workload": suite.workload, "model": suite.model, "link": suite.link}
    arms = list(suite.arms)
    for axis, value in point.items():
        head, _, rest = axis.partition(".")
        if head in parts:
            parts[head] = _replaced(parts[head], axis, value, source)
        else:
            only = None if head == "settings" else rest.rpartition(".")[0]
            key = rest if only is None else rest.rpartition(".")[2]
            arms = [
                msgspec.structs.replace(arm, settings={**arm.settings, key: value})
                if only in (None, arm.name)
                else arm
                for arm in arms
            ]
    return Cell(_name(point), dict(point), tuple(arms), **parts)


def _replaced(part: Any, axis: str, value: Any, source: str) -> Any:
    head, _, field = axis.partition(".")
    try:
        if head == "model":
            return msgspec.convert(value, str)
        if head == "link":
            return msgspec.convert({field: value}, LinkSpec)
        return msgspec.convert({**msgspec.to_builtins(part), field: value}, Workload)
    except msgspec.ValidationError as error:
        text = str(error).partition(" - at ")[0]
        raise UsageError(f"{source}: grid.{axis}: {value!r}: {text}") from error


def _name(point: dict[str, Any]) -> str:
    """``prompt_tokens=1024,pipelined.depth=2``: safe in file names, benchstat names and shells."""
    if not point:
        return _SINGLE
    pieces = []
    for axis, value in point.items():
        head, _, rest = axis.partition(".")
        key = axis if head == "model" else rest
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        pieces.append(f"{key}={re.sub(r'[^A-Za-z0-9._+-]', '_', shown)}")
    name = ",".join(pieces)
    if len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 9]}~{hashlib.sha256(name.encode()).hexdigest()[:8]}"
