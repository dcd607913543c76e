"""The ring: N + 2 slots of device memory, each with its ready and its release (T5, T6, T7).

ready[i]: slot i's delivery is complete; a consumer waits for it.
release[i]: every kernel that read slot i is past; the next delivery into it waits for that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvbench.device.api import Device, Event
from kvbench.device.memory import Buffer
from kvbench.errors import DeviceError, OutOfDeviceMemory
from kvbench.transport.order import Mark, Order


@dataclass(eq=False, slots=True)
class Ring:
    """Slots and their marks. ``cursor`` is the slot of the next graph's first split (H1)."""

    device: Device
    buffer: Buffer
    n_slots: int
    slot_bytes: int
    ready_events: list[Event]
    release_events: list[Event]
    ready: list[Mark | None] = field(default_factory=list)
    release: list[Mark | None] = field(default_factory=list)
    cursor: int = 0

    def __post_init__(self) -> None:
        self.ready = [None] * self.n_slots
        self.release = [None] * self.n_slots

    def base(self, slot: int) -> int:
        """Byte offset of a slot."""
        return slot * self.slot_bytes

    def settle(self, mark: Mark) -> None:
        """Everything done with the slots so far is behind ``mark`` (a graph was launched)."""
        self.ready = [mark] * self.n_slots
        self.release = [mark] * self.n_slots

    def marks(self) -> list[Mark]:
        """Behind them lies all that was done with the slots; the latest first, as it may imply
        the others."""
        made = [m for m in (*self.ready, *self.release) if m is not None]
        return sorted(made, key=lambda m: -m.seq)


def open_ring(device: Device, n_slots: int, slot_bytes: int) -> Ring:
    """Allocate a ring, or nothing at all: what was created before a failure is given back.

    Raises OutOfDeviceMemory or DeviceError with the step that failed.
    """
    events: list[Event] = []
    buffer: Buffer | None = None
    try:
        if device.hooks.fail("ring"):
            raise OutOfDeviceMemory(f"{device.name}: no memory for the ring")
        buffer = device.alloc("ring", n_slots * slot_bytes)
        for i in range(n_slots):
            events.append(device.event(f"ready{i}"))
            events.append(device.event(f"release{i}"))
    except DeviceError:
        for event in events:
            device.drop_event(event)
        if buffer is not None:
            device.free(buffer)
        raise
    return Ring(device, buffer, n_slots, slot_bytes, events[0::2], events[1::2])


def close_ring(ring: Ring, order: Order) -> None:
    """Free a ring once its last delivery and its last reader are past (T7)."""
    for mark in ring.marks():
        order.host_after(mark, "free ring")
    for event in (*ring.ready_events, *ring.release_events):
        ring.device.drop_event(event)
    ring.device.free(ring.buffer)
