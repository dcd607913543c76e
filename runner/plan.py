"""The plan of an experiment: pure data, stored as plan.json before the first run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvbench.analysis.estimate import Floor
from kvbench.errors import UsageError
from kvbench.records.journal import write_durably
from kvbench.spec import Cell, Link, Suite, suite_from_builtins

PLAN_VERSION = 1
PLAN_NAME = "plan.json"


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was asked, with everything resolved that must not change between runs."""

    v: int
    run: str
    created: float
    suite: dict[str, Any]
    """The suite as plain data, defaults left out."""
    suite_ref: str
    """What the user named: a bundled suite or a path."""
    command: tuple[str, ...]
    source: dict[str, Any] = {}
    """The suite as its file had it, where the command line changed it."""
    links: dict[str, Link] = {}
    """Cell -> link, for cells whose link is slowed; calibrated once, before the first block."""
    floors: dict[str, Floor] = {}
    """Cell -> the machine's stored A/A calibration when the plan was made."""
    require: str | None = None

    def resolve(self) -> tuple[Suite, tuple[Cell, ...]]:
        """The suite and its cells."""
        return suite_from_builtins(self.suite, f"{self.run}/{PLAN_NAME}")


def new_plan(suite: Suite, ref: str, command: Sequence[str], require: str | None = None) -> Plan:
    """A plan with an id of its own: ``<suite>-<UTC time>-<4 hex digits>``."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return Plan(
        v=PLAN_VERSION,
        run=f"{suite.name}-{stamp}-{secrets.token_hex(2)}",
        created=time.time(),
        suite=plain(suite),
        suite_ref=ref,
        command=tuple(command),
        require=require,
    )


def plain(suite: Suite) -> dict[str, Any]:
    """The suite as the plain data that JSON gives back: lists, no tuples."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(suite))
    return found


def store_plan(plan: Plan, directory: Path) -> None:
    """Write plan.json; a crash leaves the old one or the new one."""
    directory.mkdir(parents=True, exist_ok=True)
    data = msgspec.json.format(msgspec.json.encode(plan), indent=2)
    write_durably(directory / PLAN_NAME, data + b"\n")


def load_plan(directory: Path) -> Plan:
    """The plan of a stored experiment. Raises ``UsageError``."""
    path = directory / PLAN_NAME
    try:
        return read_plan(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"{path}: not a stored experiment: {error.strerror}") from error


def read_plan(data: bytes, source: str) -> Plan:
    """The plan in ``data``; ``source`` names it in errors. Raises ``UsageError``."""
    try:
        plan = msgspec.json.decode(data, type=Plan)
    except msgspec.DecodeError as error:
        raise UsageError(f"{source}: not a plan: {error}") from error
    if plan.v != PLAN_VERSION:
        raise UsageError(f"{source}: version {plan.v}; this kvbench reads {PLAN_VERSION}")
    return plan


def rounds(cells: int, blocks: int) -> Iterator[tuple[int, list[int]]]:
    """(block, cell indices): one block of every cell, then the next; cells to and fro.

    So a slow drift meets all cells alike, and each cell's blocks are spread over the whole time.
    """
    forward = list(range(cells))
    for block in range(blocks):
        yield block, forward if block % 2 == 0 else forward[::-1]


def suite_differences(
    before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = ""
) -> list[str]:
    """Keys whose values differ between two suites in plain data, as a refusal names them."""
    names: list[str] = []
    for key in sorted({*before, *after}):
        names += _differences(before.get(key), after.get(key), f"{prefix}{key}")
    return names


def _differences(old: Any, new: Any, name: str) -> list[str]:
    if {type(old), type(new)} <= {dict, type(None)} and old != new:
        return suite_differences(old or {}, new or {}, f"{name}.") or [name]
    tables = [isinstance(each, list | tuple) for each in (old, new)]
    if all(tables) and len(old) == len(new) and any(isinstance(each, Mapping) for each in old):
        pairs = enumerate(zip(old, new, strict=True))
        return [found for at, two in pairs for found in _differences(*two, f"{name}[{at}]")]
    return [name] if old != new else []
