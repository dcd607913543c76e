"""The transport's settings: validated once, immutable from then on (T12, T15)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kvbench.errors import SettingError

MIB = 1 << 20
MAX_DEPTH = 8
MAX_MIB = 65_536
DEFAULT_BUDGET_MIB = 128
DEFAULT_HEADROOM_MIB = 512

Boundary = Literal["wait", "carry"]
"""wait: each graph waits for the one before (T4); carry: the look-ahead crosses (T4a)."""
Tail = Literal["host", "device"]
"""host: new rows go to the host and are delivered back; device: they are written in the slot."""
Loop = Literal["async", "blocking"]
"""blocking: the host waits for each store of new rows, as the origin's loop does."""
Ablation = Literal["one_slot_less", "issue_before", "recycle_through_host"]
"""Ways to lose the gain while the output stays right (T6); each is an arm."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """How windows reach the device. ``depth`` 0 is the ordered path and creates nothing (T18)."""

    depth: int = 0
    budget_mib: int = -1
    """Cap on the ring per device: −1 the default of 128, 0 no cap."""
    headroom_mib: int = DEFAULT_HEADROOM_MIB
    """Device memory that must stay free next to the ring (T14)."""
    boundary: Boundary = "carry"
    tail: Tail = "device"
    loop: Loop = "async"
    ablate: tuple[Ablation, ...] = ()
    row_multiple: int = 64
    """A window's rows are rounded up to a multiple of this; the extra rows are counted (H5)."""

    def __post_init__(self) -> None:
        _whole("depth", self.depth, 0, MAX_DEPTH)
        _whole("budget_mib", self.budget_mib, -1, MAX_MIB, "(-1: default, 0: no cap)")
        _whole("headroom_mib", self.headroom_mib, 0, MAX_MIB)
        _whole("row_multiple", self.row_multiple, 1, 4096)
        _choice("boundary", self.boundary, ("wait", "carry"))
        _choice("tail", self.tail, ("host", "device"))
        _choice("loop", self.loop, ("async", "blocking"))
        for name in self.ablate:
            _choice("ablate", name, ("one_slot_less", "issue_before", "recycle_through_host"))

    @property
    def n_slots(self) -> int:
        """N + 2 (T6), or one less where that is what is measured."""
        return self.depth + (1 if "one_slot_less" in self.ablate else 2)

    @property
    def budget_bytes(self) -> int | None:
        """Bytes the ring may take; None where nothing caps it."""
        mib = DEFAULT_BUDGET_MIB if self.budget_mib == -1 else self.budget_mib
        return mib * MIB if mib else None


def from_environment(environ: Mapping[str, str] = os.environ) -> dict[str, int]:
    """Settings given by environment variables; an explicit setting beats them (T12)."""
    found: dict[str, int] = {}
    for variable, name in (("KVBENCH_DEPTH", "depth"), ("KVBENCH_RING_MIB", "budget_mib")):
        text = environ.get(variable)
        if text is None:
            continue
        try:
            found[name] = int(text, 10)
        except ValueError:
            raise SettingError(
                name, text, "a whole number", f"environment variable {variable}"
            ) from None
    return found


def _whole(name: str, value: object, low: int, high: int, note: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise SettingError(name, value, f"a whole number from {low} to {high} {note}".strip())


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SettingError(name, value, "one of " + ", ".join(allowed))
