"""What staging stands on: ring, transfer queue, events and the ordered path's window (T11-T14).

Everything that a graph may need is there before it is planned, or nothing is: whatever fails on
the way becomes a Decline, and the ordered path is taken for that graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvbench.device.api import Device, Event, Queue
from kvbench.device.memory import Buffer
from kvbench.errors import DeviceError, OutOfDeviceMemory
from kvbench.transport import budget
from kvbench.transport.budget import Decline
from kvbench.transport.order import Order
from kvbench.transport.ring import Ring, close_ring, open_ring
from kvbench.transport.settings import TransportSettings
from kvbench.transport.telemetry import Telemetry
from kvbench.transport.window import Geometry, Storage

IDLE_GRAPHS = 8
"""A ring survives this many graphs that stage nothing (T13)."""
AT_ONCE = ("headroom", "allocation", "graph")
"""Declines that are about memory: the ring goes at once."""


class Staging:
    """One device's ring and what belongs to it. ``discard`` drops a look-ahead in flight."""

    def __init__(
        self,
        device: Device,
        compute: Queue,
        storages: Sequence[Storage],
        settings: TransportSettings,
        order: Order,
        telemetry: Telemetry,
        discard: Callable[[str], None],
    ) -> None:
        self.device, self.compute, self.storages = device, compute, storages
        self.settings, self.order, self.telemetry = settings, order, telemetry
        self.ring: Ring | None = None
        self.transfer: Queue | None = None
        self.events: dict[str, Event] = {}
        self.window: Buffer | None = None
        """Where the ordered path copies to: a working buffer of the graph, in every arm (T18)."""
        self._discard = discard
        self._idle = 0
        self._ordered_only = False

    def prepare(self, geometry: Geometry) -> Decline | None:
        """Have a ring that holds this graph's windows, or say why not."""
        self._reserve_window(geometry)
        decline = budget.ineligible(self.device.capabilities, self.settings, self.storages)
        if decline is None and self._ordered_only:
            decline = Decline("graph", "a graph could not be allocated next to a ring")
        if decline is None:
            decline = self._fit(geometry)
        if decline is None:
            self._idle = 0
        return decline

    def declined(self, decline: Decline) -> None:
        """This graph stages nothing: the ring goes, now or after a few such graphs (T13)."""
        self._idle += 1
        if self._idle > IDLE_GRAPHS or decline.reason in AT_ONCE:
            self._release("declined")

    def give_up(self) -> bool:
        """Release the ring for good (T14); True if there was one."""
        held = self.ring is not None
        self._ordered_only = True
        self._release("graph allocation")
        return held

    def queue(self) -> Queue:
        """The transfer queue; it is kept over a decline."""
        if self.transfer is None:
            self.transfer = self.device.queue("transfer")
        return self.transfer

    def close(self) -> None:
        """Give everything back; the caller has drained both queues."""
        self._release("close")
        if self.window is not None:
            self.device.free(self.window)
            self.window = None
        for event in self.events.values():
            self.device.drop_event(event)
        self.events.clear()
        if self.transfer is not None:
            self.device.drop_queue(self.transfer)
            self.transfer = None

    # ------------------------------------------------------------------ details
    def _fit(self, geometry: Geometry) -> Decline | None:
        """Keep the ring if its slots are large enough, else replace it."""
        pitch, full = self.storages[0].pitch, self.storages[0].capacity
        if self.ring is None or geometry.window_bytes(pitch) > self.ring.slot_bytes:
            size = budget.slot_size(geometry, pitch, full, self.settings)
            if isinstance(size, Decline):
                return size
            decline = self._replace(size)
            if decline is not None:
                return decline
        if self.device.hooks.fail("plan"):
            return Decline("allocation", f"{self.device.name}: no memory for a plan")
        return None

    def _replace(self, slot_bytes: int) -> Decline | None:
        self._release("ring resized")
        total = self.settings.n_slots * slot_bytes
        short = budget.headroom(self.device.free_bytes(), total, self.settings)
        if short is not None:
            return short
        try:
            self.queue()
            self._open_events()
            self.ring = open_ring(self.device, self.settings.n_slots, slot_bytes)
        except DeviceError as error:
            return Decline("allocation", str(error))
        self.telemetry.ring(total)
        return None

    def _release(self, reason: str) -> None:
        self._discard(reason)
        self._idle = 0
        if self.ring is not None:
            close_ring(self.ring, self.order)
            self.ring = None

    def _open_events(self) -> None:
        """Every event a graph may record, made before it is planned: none can fail later (T11)."""
        stored = [f"stored{split}" for split in range(len(self.storages))]
        for name in ("boundary", "fork", "join", *stored):
            if name not in self.events:
                self.events[name] = self.device.event(name)

    def _reserve_window(self, geometry: Geometry) -> None:
        need = geometry.window_bytes(self.storages[0].pitch)
        if self.window is not None and self.window.nbytes >= need:
            return
        rows = max(1 << (geometry.rows - 1).bit_length(), 1)
        size = Geometry(geometry.active, rows).window_bytes(self.storages[0].pitch)
        if self.window is not None:
            self.device.synchronize(self.compute, "grow")
            self.order.host_waited(self.compute)
            self.device.free(self.window)
            self.window = None
        try:
            self.window = self.device.alloc("window", size, clear=False)
        except OutOfDeviceMemory:
            if not self.give_up():
                raise
            self.window = self.device.alloc("window", size, clear=False)
