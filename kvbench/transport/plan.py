"""The plan of one graph on one device: which bytes move when, as pure data (T8, T9, T10).

A plan belongs to one graph; its generation says which. Nothing here touches a device, so a plan
can be printed, compared, mutated by a planted fault and checked for its invariants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvbench.transport.prefix import StablePrefix
from kvbench.transport.settings import TransportSettings
from kvbench.transport.window import Geometry, Range, Storage, ranges


@dataclass(frozen=True, slots=True)
class Delivery:
    """The window of one split: what is copied into its slot, early and late."""

    split: int
    slot: int
    storage: Storage
    early: tuple[Range, ...]
    """Stable rows, deliverable ahead."""
    late: tuple[Range, ...]
    """Rows deliverable only after this graph's store of new rows (T8)."""

    @property
    def early_bytes(self) -> int:
        """Bytes that move ahead."""
        return sum(r.nbytes for r in self.early)

    @property
    def late_bytes(self) -> int:
        """Bytes that move after their producer."""
        return sum(r.nbytes for r in self.late)


@dataclass(frozen=True, slots=True)
class Plan:
    """All deliveries of one graph on one device, in split order."""

    generation: int
    epoch: int
    geometry: Geometry
    pitch: int
    n_slots: int
    deliveries: tuple[Delivery, ...]

    @property
    def slot_bytes(self) -> int:
        """Bytes of a slot that the windows take."""
        return self.geometry.window_bytes(self.pitch)


def build(
    *,
    generation: int,
    geometry: Geometry,
    storages: Sequence[Storage],
    prefix: StablePrefix,
    settings: TransportSettings,
    phase: int,
    multiple: int = 1,
) -> Plan:
    """Plan one graph: ``phase`` is the slot of its first split (H1).

    ``multiple``: early regions end at whole multiples of this many rows (captured graphs).
    tail = device: the kernel that makes the new rows writes them into the slot after the delivery,
    so the whole window may move ahead. tail = host: rows from the stable prefix on are late.
    """
    n_slots = settings.n_slots
    deliveries: list[Delivery] = []
    for split, storage in enumerate(storages):
        if settings.tail == "device":
            early = tuple((0, geometry.rows) for _ in geometry.active)
        else:
            early = tuple(
                (0, prefix.within(s, geometry.rows) // multiple * multiple) for s in geometry.active
            )
        late = tuple((stop, geometry.rows) for _, stop in early)
        deliveries.append(
            Delivery(
                split=split,
                slot=(phase + split) % n_slots,
                storage=storage,
                early=ranges(storage, geometry, early),
                late=ranges(storage, geometry, late),
            )
        )
    pitch = storages[0].pitch if storages else 0
    return Plan(generation, prefix.epoch, geometry, pitch, n_slots, tuple(deliveries))


def whole(storage: Storage, geometry: Geometry) -> tuple[Range, ...]:
    """The copies of the ordered path: every row of every active stream, at once."""
    return ranges(storage, geometry, tuple((0, geometry.rows) for _ in geometry.active))
