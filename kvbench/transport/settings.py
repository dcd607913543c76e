"""The transport's settings: validated once, immutable from then on (T12, T15)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from kvbench.errors import SettingError

MIB = 1 << 20
WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
"""What an environment variable may hold: digits, no blanks, no underscores."""
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


@dataclass(slots=True, unsafe_hash=True)
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
        for name in self.ablate if isinstance(self.ablate, list | tuple) else (self.ablate,):
            _choice("ablate", name, ("one_slot_less", "issue_before", "recycle_through_host"))

    def __setattr__(self, name: str, value: object) -> None:
        """Once: a setter after that raises (T15)."""
        if hasattr(self, name):
            stays = f"it stays {getattr(self, name)!r}, since memory depends on it"
            raise SettingError(name, value, stays, "setter after validation")
        object.__setattr__(self, name, value)

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
        source = f"environment variable {variable}"
        if not WHOLE.fullmatch(text):
            raise SettingError(name, text, "a whole number", source)
        with from_source(source):
            check({name: int(text)})
        found[name] = int(text)
    return found


def check(values: Mapping[str, Any]) -> None:
    """Refuse transport settings, given by name, that are out of range or of another type."""
    TransportSettings(**values)


@contextmanager
def from_source(source: str) -> Iterator[None]:
    """Settings refused inside came from ``source``."""
    try:
        yield
    except SettingError as error:
        raise SettingError(error.name, error.value, error.allowed, source) from None


def _whole(name: str, value: object, low: int, high: int, note: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise SettingError(name, value, f"a whole number from {low} to {high} {note}".strip())


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SettingError(name, value, "one of " + ", ".join(allowed))
