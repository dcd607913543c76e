"""Nested settings as flat rows, and what differs between arms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvbench.records import ArmSummary
from kvbench.report.words import NONE, visible


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """``{"a": {"b": 1}}`` as ``{"a.b": "1"}``; lists are joined, empty parts shown as such.

    Tables in a list are numbered: ``{"a": [{"b": 1}]}`` is ``{"a.0.b": "1"}``.
    """
    rows: dict[str, str] = {}
    for key, value in tree.items():
        name = f"{prefix}{visible(key)}"
        if _is_list(value) and any(isinstance(item, Mapping) for item in value):
            value = {str(i): item for i, item in enumerate(value)}
        if isinstance(value, Mapping) and value:
            rows.update(flatten(value, f"{name}."))
        else:
            rows[name] = _leaf(value)
    return rows


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _leaf(value: Any) -> str:
    if value is None or value == {} or value == []:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if _is_list(value):
        return ", ".join(_leaf(item) for item in value)
    return visible(value)


def differing(columns: Sequence[Mapping[str, Any]]) -> list[tuple[str, tuple[str, ...]]]:
    """Rows (name, one value per column) in which not all columns agree, in order of appearance."""
    flat = [flatten(column) for column in columns]
    names = dict.fromkeys(name for column in flat for name in column)
    rows = ((name, tuple(column.get(name, NONE) for column in flat)) for name in names)
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def common(columns: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Rows in which all columns agree."""
    flat = [flatten(column) for column in columns]
    if not flat:
        return []
    return [(n, v) for n, v in flat[0].items() if all(column.get(n) == v for column in flat)]


def listed(names: Iterable[str], limit: int = 8) -> str:
    """Names joined by commas, cut after ``limit`` with a count of the rest."""
    shown = list(names)
    rest = f" and {len(shown) - limit} more" if len(shown) > limit else ""
    return ", ".join(shown[:limit]) + rest


def settings_of(arm: ArmSummary) -> dict[str, Any]:
    """What the arm runs with: what was asked for, and what it says came of that."""
    effective = arm.receipt.get("effective")
    return {"engine": arm.engine, **arm.settings, **(effective if effective else {})}


_NOT_THE_PROGRAM = ("name", "settings", "effective", "notes")


def program_of(arm: ArmSummary) -> dict[str, Any]:
    """What the arm is, settings apart: command, version, revision, digests, libraries."""
    return {k: v for k, v in arm.receipt.items() if k not in _NOT_THE_PROGRAM}
