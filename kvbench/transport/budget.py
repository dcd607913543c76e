"""How large a ring may be, and whether it may be at all (T5, T11–T14, T16). Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvbench.device.api import Capabilities
from kvbench.transport.settings import MIB, TransportSettings
from kvbench.transport.window import Geometry, Storage

ALIGN = 256
"""Every slot starts on a multiple of this, also when the budget caps its size (T5)."""


@dataclass(frozen=True, slots=True)
class Decline:
    """The ordered path is taken, and why: a stable word and a sentence."""

    reason: str
    detail: str


def ineligible(
    capabilities: Capabilities, settings: TransportSettings, storages: Sequence[Storage] = ()
) -> Decline | None:
    """What the device or the storage lacks (T3, T6, T16), if anything."""
    if settings.depth == 0:
        return Decline("off", "depth is 0")
    if capabilities.sliced:
        return Decline(
            "sliced",
            "sliced = True (declared by the device): a tensor-parallel slice is not staged, "
            "only a whole device",
        )
    copies = capabilities.input_copies
    if copies > 1:
        return Decline(
            "multi-buffered",
            f"input_copies = {copies} (declared by the device): 1 is allowed; inputs kept in "
            f"{copies} copies are buffered already",
        )
    borrowed = next((s.buffer.name for s in storages if not s.annotated), None)
    if borrowed is not None:
        return Decline(
            "borrowed",
            f"annotated = False (storage {borrowed}): the cache borrows it from another one, which "
            "may rewrite it; storage of its own is needed",
        )
    for name in ("queue_event_waits", "async_copies", "pinned_host"):
        if not getattr(capabilities, name):
            return Decline("capability", f"{name} = False (declared by the device): True is needed")
    return None


def slot_size(
    geometry: Geometry, pitch: int, full_rows: int, settings: TransportSettings
) -> int | Decline:
    """Bytes per slot: min(next power of two of rows, full context, budget ÷ slots), aligned.

    Growing in powers of two keeps a growing context from reallocating at every step (T13).
    """
    need = _align_up(geometry.window_bytes(pitch))
    rows = min(1 << (geometry.rows - 1).bit_length(), max(full_rows, geometry.rows))
    want = _align_up(Geometry(geometry.active, rows).window_bytes(pitch))
    budget = settings.budget_bytes
    if budget is None:
        return want
    share = budget // settings.n_slots // ALIGN * ALIGN
    if need > share:
        full = _align_up(Geometry(geometry.active, full_rows).window_bytes(pitch))
        return Decline(
            "budget",
            f"{settings.n_slots} slots of {need / MIB:.1f} MiB exceed the budget of "
            f"{budget / MIB:.0f} MiB; the full context of {full_rows} rows would need "
            f"{settings.n_slots * full / MIB:.1f} MiB",
        )
    return min(want, share)


def headroom(free: int, ring: int, settings: TransportSettings) -> Decline | None:
    """Whether enough device memory stays free next to a ring of ``ring`` bytes (T14)."""
    keep = settings.headroom_mib * MIB
    if free - ring < keep:
        return Decline(
            "headroom",
            f"a ring of {ring / MIB:.1f} MiB would leave {max(0, free - ring) / MIB:.1f} MiB "
            f"free; {settings.headroom_mib} MiB must stay free",
        )
    return None


def _align_up(nbytes: int) -> int:
    return -(-nbytes // ALIGN) * ALIGN
