"""What programs say they run with: against what was asked, and what differs unasked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvbench.engines.arm import Arm


def setting_notes(
    baseline: Arm, arms: Iterable[Arm], effective: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Lines for a report: ``b: asked for x = 1, runs with 2``; ``b: y = 1 (a: 0), unasked``."""
    notes = []
    own = effective.get(baseline.name, {})
    for arm in (baseline, *arms):
        theirs = effective.get(arm.name, {})
        for key in sorted(theirs):
            asked = arm.settings.get(key, theirs[key])
            if not _same(asked, theirs[key]):
                notes.append(f"{arm.name}: asked for {key} = {asked!r}, runs with {theirs[key]!r}")
        apart = [
            f"{key} = {theirs.get(key)!r} ({baseline.name}: {own.get(key)!r})"
            for key in sorted({*own, *theirs})
            if arm is not baseline
            and theirs
            and not _same(own.get(key), theirs.get(key))
            # What the settings themselves say is no news.
            and _same(baseline.settings.get(key), arm.settings.get(key))
        ]
        if apart:
            notes.append(f"{arm.name}: {'; '.join(apart)}, unasked")
    return notes


def _same(one: object, other: object) -> bool:
    """Equal as data: JSON turns tuples into lists and knows one kind of number."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return list(one) == list(other)
    return one == other
