"""One device's transport: brings each split's window to the device, ahead of time where it can.

The life of a byte, for a graph of L splits and a look-ahead of N:

    prepare    plan the graph: pure data
    prime      deliver splits 0..N-1, but for those that the graph before already did (carry);
               the first of them is behind all that earlier graphs, staged or not, stored (T4)
    stored     split l's new rows are in the host arena; tail = host: its late rows follow
    window     the consumer's queue waits for the slot's *ready*
               then its *release* is recorded; split l + N is delivered, or the next graph's
               split l + N - L when the look-ahead crosses the boundary
    end        a mark behind the stores, unless there is one; what was delivered for the next
               graph is its carry

What makes a delivery into a slot safe: it waits for the release of the slot's last reader. What
makes its bytes the right ones: it waits for the store of the rows it reads. What makes reading
the slot safe: the consumer waits for ready. Order (order.py) drops the edges that others imply.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kvbench.device.api import Device, Queue
from kvbench.device.kernels import View
from kvbench.device.memory import Span
from kvbench.device.ranges import ranged
from kvbench.transport.budget import Decline
from kvbench.transport.hooks import TransportHooks
from kvbench.transport.order import Mark, Order
from kvbench.transport.plan import Delivery, Plan, build, whole
from kvbench.transport.prefix import StablePrefix
from kvbench.transport.ring import Ring
from kvbench.transport.settings import TransportSettings
from kvbench.transport.staging import Staging
from kvbench.transport.telemetry import Telemetry
from kvbench.transport.window import Geometry, Range, Storage, packed_view


@dataclass(frozen=True, slots=True)
class Next:
    """What is known of the graph after this one: enough to deliver its first windows (T4a)."""

    geometry: Geometry
    prefix: tuple[int, ...]
    """Rows of each active stream that will be stable then, whatever is accepted (H9)."""


@dataclass(frozen=True, slots=True)
class Carry:
    """Deliveries already made for the next graph, and what they assumed (H11)."""

    epoch: int
    deliveries: tuple[Delivery, ...]

    @property
    def nbytes(self) -> int:
        """Bytes moved ahead for the next graph."""
        return sum(d.early_bytes for d in self.deliveries)


class Pipeline:
    """The windows of one device's host-resident layers. Driven by one host thread."""

    def __init__(
        self,
        device: Device,
        compute: Queue,
        storages: Sequence[Storage],
        prefix: StablePrefix,
        settings: TransportSettings,
        hooks: TransportHooks | None = None,
        *,
        baked: bool = False,
    ) -> None:
        """``storages``: host-resident layers in split order, all of one pitch.

        ``baked``: sizes are fixed in captured graphs, so early regions end at whole multiples.
        """
        self.device, self.compute, self.storages = device, compute, tuple(storages)
        self.prefix, self.settings, self.baked = prefix, settings, baked
        self.hooks = hooks or TransportHooks()
        self.order = Order(device)
        self.telemetry = Telemetry()
        self.staging = Staging(
            device, compute, self.storages, settings, self.order, self.telemetry, self._discard
        )
        self.plan: Plan | None = None
        self.carry: Carry | None = None
        self.geometry: Geometry | None = None
        self._generation = 0
        self._next: Plan | None = None
        self._carried = 0
        self._outside: dict[str, int] | None = None
        """In a capture that the transfer queue takes part in: what it knew outside."""
        self._depth = min(settings.depth, len(self.storages))
        self._boundary: Mark | None = None
        """What the next graph's first delivery must be behind, unless ``_unmarked``."""
        self._unmarked = False
        """Rows were stored, staged or not, and no mark was made that is behind them."""
        self._stored: dict[int, Mark] = {}
        self._unready: set[int] = set()
        """Slots with a delivery in flight that no *ready* is behind yet."""

    # ---------------------------------------------------------------- one graph
    def prepare(self, geometry: Geometry, after: Next | None = None) -> None:
        """Plan this graph. ``after``: the next graph, if known. Queues nothing but a ring's end."""
        self._generation += 1
        self.telemetry.graphs += 1
        self.geometry = geometry
        self.plan, self._next, self._carried = None, None, 0
        if not self.storages:
            return
        decline = self.staging.prepare(geometry)
        if decline is not None:
            self._decline(decline)
            return
        self.telemetry.staged_graphs += 1
        self.plan = self._plan(geometry, self.prefix, self._cursor())
        self._carried = self._take_carry()
        if after is None or self.settings.boundary == "wait":
            self.telemetry.stops["boundary" if after is not None else "no next graph"] += 1
        else:
            self._next = self._plan_next(after)

    def prime(self) -> None:
        """Issue the first deliveries, those that the graph before has not made."""
        if self.plan is None:
            return
        if self._carried == 0:
            if self._unmarked:
                self._mark_boundary()
            self.order.after(self._queue(), self._boundary, "boundary")
        for split in range(self._carried, self._depth):
            self._deliver(self.plan.deliveries[split])

    def stored(self, split: int) -> None:
        """The store of this split's new rows has been queued on the compute queue."""
        self._unmarked = True
        delivery = self.plan.deliveries[split] if self.plan is not None else None
        if delivery is not None and self._wants_store_mark(delivery):
            mark = self.order.mark(self.compute, self.staging.events[f"stored{split}"])
            self._stored[split] = mark
            if self.settings.boundary == "carry":  # the stores are enough (T4a); else T4
                self._boundary, self._unmarked = mark, False
        if self.settings.loop == "blocking":
            self._wait_for(self.compute, "store")
        if delivery is not None and delivery.late:
            self.order.after(self._queue(), self._stored[split], "tail")
            self._copy(self._queue(), delivery, delivery.late, "late")
            self._mark_ready(delivery)

    @contextmanager
    def window(self, split: int) -> Iterator[View]:
        """This split's window, readable by what is queued inside; released afterwards (T7)."""
        assert self.geometry is not None
        pitch = self.storages[split].pitch
        if self.plan is None:
            yield self._ordered(split, pitch)
            return
        ring, _ = self._staged()
        delivery = self.plan.deliveries[split]
        if "issue_before" in self.settings.ablate:
            self._look_ahead(split)
        self.order.after(self.compute, ring.ready[delivery.slot], "ready")
        try:
            base = ring.base(delivery.slot)
            view = packed_view(ring.buffer, base, self.geometry, pitch)
            yield self.hooks.view(view, split, ring.slot_bytes)
        finally:
            ring.release[delivery.slot] = self.order.mark(
                self.compute, ring.release_events[delivery.slot]
            )
        if "issue_before" not in self.settings.ablate:
            self._look_ahead(split)

    def slot(self, split: int) -> int:
        """The slot of a split in this graph, −1 on the ordered path."""
        return self.plan.deliveries[split].slot if self.plan is not None else -1

    def end(self) -> None:
        """This graph's work is queued: leave the mark that the next graph may wait for."""
        if self._unmarked and "boundary" in self.staging.events:
            self._mark_boundary()
        self._finish()

    def _finish(self) -> None:
        if self.plan is None or self.ring is None:
            if self.storages and self.geometry is not None:
                moved = self.geometry.window_bytes(self.storages[0].pitch)
                self.telemetry.bytes["ordered"] += len(self.storages) * moved
            return
        self.ring.cursor = (self.ring.cursor + len(self.plan.deliveries)) % self.ring.n_slots
        self.telemetry.deliveries += len(self.plan.deliveries)
        for delivery in self.plan.deliveries:
            self.telemetry.bytes["early"] += delivery.early_bytes
            self.telemetry.bytes["late"] += delivery.late_bytes
        if self._next is not None:
            self.carry = Carry(self.prefix.epoch, self._next.deliveries[: self._depth])

    # ----------------------------------------------------------- captured graphs
    def key(self) -> Hashable:
        """What a captured graph of this plan has baked in: equal keys may share a capture."""
        assert self.geometry is not None
        if self.plan is None:
            window = self.staging.window.id if self.staging.window is not None else 0
            return self.hooks.graph_key((window, self.geometry), self.geometry)
        ring, _ = self._staged()
        following = self._next.deliveries[: self._depth] if self._next is not None else ()
        key = (ring.buffer.id, self.plan.deliveries, self._carried, following)
        return self.hooks.graph_key(key, self.geometry)

    def settle(self) -> None:
        """Before a launch: the compute queue is behind every delivery made outside the graph."""
        if self.ring is not None:
            for mark in self.ring.ready:
                self.order.after(self.compute, mark, "launch")

    def fork(self) -> None:
        """First thing in a capture: the transfer queue branches off, if it has anything to do."""
        if self._delivers():
            self._boundary, self._outside = self.order.fork(
                self.compute, self._queue(), self.staging.events["fork"]
            )
            self._unmarked = False

    def _delivers(self) -> bool:
        """Whether this graph delivers at all: all may have been carried, and no graph follow."""
        if self.plan is None:
            return False
        here, carried = self.plan.deliveries, self.plan.deliveries[: self._carried]
        return len(carried) < len(here) or self._next is not None or any(d.late for d in carried)

    def rejoin(self) -> None:
        """Last thing in a capture: everything delivered inside it is behind the graph's end."""
        if self._outside is None:
            return
        if self._next is not None:
            joined = self.order.mark(self._queue(), self.staging.events["join"])
            self.order.after(self.compute, joined, "rejoin")
        self._leave_capture()

    def aborted(self) -> None:
        """The capture failed and nothing of it ran: marks made in it are void (H14)."""
        self._leave_capture()
        if self.plan is None or self.ring is None:
            return
        self.ring.settle(self._mark_boundary())
        self._stored.clear()
        self._unready.clear()

    def _leave_capture(self) -> None:
        if self._outside is not None:
            self.order.restore(self._queue(), self._outside)
            self._outside = None

    def launched(self) -> None:
        """The graph was launched: all it did is behind one mark on the compute queue (H15)."""
        self._unmarked = True  # a replay stores rows without calling ``stored``
        if self.plan is not None and self.ring is not None:
            mark = self._mark_boundary()
            self.ring.settle(mark)
            self._stored = dict.fromkeys(self._stored, mark)
        self.end()

    def _mark_boundary(self) -> Mark:
        """A mark behind all that the compute queue was given so far (T4)."""
        mark = self.order.mark(self.compute, self.staging.events["boundary"])
        self._boundary, self._unmarked = mark, False
        return mark

    # -------------------------------------------------------- around the graphs
    def drain(self, reason: str) -> None:
        """Wait on the host for every reader and writer in flight, and drop a carry (T17, H13)."""
        if not self.hooks.drains(reason):
            return
        self._wait_for(self.compute, reason)
        if self.transfer is not None and self._unready:
            self._wait_for(self.transfer, reason)  # a graph failed amid its deliveries
            self._unready.clear()
        if self.ring is not None:
            for mark in self.ring.marks():
                self.order.host_after(mark, reason)
        self._discard(reason)

    def _wait_for(self, queue: Queue, reason: str) -> None:
        self.device.synchronize(queue, reason)
        self.order.host_waited(queue)

    def close(self) -> None:
        """Give everything back; ``drain`` has waited for it."""
        self.staging.close()

    # ----------------------------------------------------------------- planning
    def _plan(self, geometry: Geometry, prefix: StablePrefix, phase: int) -> Plan:
        prefix = prefix.seen_by(self.hooks.prefix)
        return self.hooks.plan(
            build(
                generation=self._generation,
                geometry=geometry,
                storages=self.storages,
                prefix=prefix,
                settings=self.settings,
                phase=phase,
                multiple=self.settings.row_multiple if self.baked else 1,
            )
        )

    def _plan_next(self, after: Next) -> Plan | None:
        assert self.ring is not None and self.plan is not None
        geometry = self.hooks.next_geometry(after.geometry, self.plan.geometry)
        if geometry.window_bytes(self.plan.pitch) > self.ring.slot_bytes:
            self.telemetry.stops["next window outgrows the slot"] += 1
            return None
        prefix = StablePrefix(self.prefix.streams, self.prefix.stride, self.prefix.epoch)
        for stream, rows in zip(after.geometry.active, after.prefix, strict=True):
            prefix.refresh(stream, rows)
        phase = (self.plan.deliveries[0].slot + len(self.storages)) % self.ring.n_slots
        return self._plan(geometry, prefix, phase)

    def _cursor(self) -> int:
        assert self.ring is not None
        return self.ring.cursor

    def _take_carry(self) -> int:
        """How many of this plan's first deliveries the graph before has made (H11)."""
        assert self.plan is not None
        carry = self.carry
        if carry is None:
            return self.hooks.carried(0, self._depth)
        ahead = self.plan.deliveries[: len(carry.deliveries)]
        valid = carry.epoch == self.prefix.epoch and ahead == carry.deliveries
        if not self.hooks.carry_valid(valid):
            self._discard("carry does not fit")
            return 0
        self.carry = None
        self.telemetry.carried += len(ahead)
        return len(ahead)

    def _discard(self, reason: str) -> None:
        """Forget deliveries made for a graph that will not use them; count their bytes.

        They are still in flight: what is computed next may rewrite the rows they read (H3).
        """
        if self.carry is not None:
            if self.ring is not None:
                mark = self.ring.ready[self.carry.deliveries[-1].slot]
                self.order.after(self.compute, mark, "discard")
            self.telemetry.bytes["wasted"] += self.carry.nbytes
            self.telemetry.stops[reason] += 1
            self.carry = None

    # --------------------------------------------------------------- deliveries
    def _look_ahead(self, split: int) -> None:
        """Deliver the split N ahead, of this graph or of the next one (T6: after the enqueue)."""
        assert self.plan is not None
        ahead = split + self._depth
        here = len(self.plan.deliveries)
        if ahead < here:
            self._deliver(self.plan.deliveries[ahead])
        elif self._next is not None and ahead - here < len(self._next.deliveries):
            delivery = self._next.deliveries[ahead - here]
            self._deliver(delivery)
            if delivery.late:  # whoever frees or resizes the ring meanwhile waits for this (H14)
                self._mark_ready(delivery)

    def _deliver(self, delivery: Delivery) -> None:
        ring, queue = self._staged()
        release, stored = ring.release[delivery.slot], self._stored.get(delivery.split)
        if "recycle_through_host" in self.settings.ablate:
            self.order.host_after(release, "release")
        self.order.after_all(queue, {"release": release, "store": stored})
        self._copy(queue, delivery, delivery.early, "early")
        if not delivery.late:
            self._mark_ready(delivery)

    def _mark_ready(self, delivery: Delivery) -> None:
        ring, queue = self._staged()
        ring.ready[delivery.slot] = self.order.mark(queue, ring.ready_events[delivery.slot])
        self._unready.discard(delivery.slot)

    def _wants_store_mark(self, delivery: Delivery) -> bool:
        """A late tail follows the store; a carried delivery of few splits is not otherwise behind
        it: with at least as many splits as slots, the release it waits for comes after the store.
        """
        few = len(self.storages) < self.settings.n_slots
        return bool(delivery.late) or (few and self.settings.boundary == "carry")

    def _copy(self, queue: Queue, delivery: Delivery, parts: Sequence[Range], site: str) -> None:
        ring, _ = self._staged()
        base, label = ring.base(delivery.slot), f"{site} {delivery.split}"
        self._unready.add(delivery.slot)
        with ranged(label):
            for part in parts:
                to = base + part.target
                self.device.copy(
                    queue,
                    Span(ring.buffer, to, part.length, part.count, part.target_pitch),
                    _source(delivery.storage, part),
                    site=site,
                    label=label,
                    split=delivery.split,
                    slot=delivery.slot,
                )

    def _ordered(self, split: int, pitch: int) -> View:
        """The ordered path: the window is copied on the consumer's own queue, then read."""
        assert self.geometry is not None and self.staging.window is not None
        storage = self.storages[split]
        for part in whole(storage, self.geometry):
            self.device.copy(
                self.compute,
                Span(self.staging.window, part.target, part.length, part.count, part.target_pitch),
                _source(storage, part),
                site="ordered",
                label=f"ordered {split}",
                split=split,
            )
        return packed_view(self.staging.window, 0, self.geometry, pitch)

    # ---------------------------------------------------------------- declining
    def _decline(self, decline: Decline) -> None:
        """The one way to the ordered path (T11): no trace of staging is left behind."""
        self.telemetry.decline(decline)
        self._discard("declined")
        self._stored.clear()
        self.plan = None
        self.staging.declined(decline)

    def give_up_rings(self) -> bool:
        """A graph found no memory: release the ring, stay ordered (T14); True if one was held."""
        return self.staging.give_up()

    # ------------------------------------------------------------------ details
    @property
    def transfer(self) -> Queue | None:
        """The transfer queue, once anything was staged."""
        return self.staging.transfer

    @property
    def ring(self) -> Ring | None:
        """The ring, while there is one."""
        return self.staging.ring

    def _queue(self) -> Queue:
        return self.staging.queue()

    def _staged(self) -> tuple[Ring, Queue]:
        assert self.staging.ring is not None
        return self.staging.ring, self.staging.queue()


def _source(storage: Storage, part: Range) -> Span:
    return Span(storage.buffer, part.source, part.length, part.count, part.source_pitch)
