"""The virtual device: executes nothing and advances a clock by a cost model, so it predicts.

Each queue is a point in time, and so is the host. Work starts when its queue is free, what it
waits for has happened and the host has issued it. Copies in one direction share one engine, which
takes them as they become ready, whatever queue they come from; kernels of different queues do not
slow each other down.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvbench.device.api import Device, Event, Graph, Queue, Record
from kvbench.device.memory import Buffer, Span
from kvbench.device.oplog import Entry
from kvbench.device.ops import Op
from kvbench.errors import SettingError

SECONDS = "seconds"
"""Tag of an operation whose time is stated instead of computed."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What the clock charges; seconds and bytes a second."""

    link: float
    """Bytes a second from host to device, for large copies."""
    link_latency: float = 0.0
    """Added to each copy: what makes small ones slow."""
    store: float | None = None
    """Bytes a second from device to host; None: as the other way."""
    memory: float = 1e12
    """Bytes a second of device memory, for kernels that state their traffic."""
    flops: float = 1e15
    issue: float = 0.0
    """The host's time for each call."""
    wait: float = 0.0
    """The host's time for each synchronize call, apart from what it waits for."""
    link_sizes: tuple[tuple[int, float], ...] = ()
    """(bytes, seconds) of copies to the device as measured, ascending; they replace ``link``."""
    store_sizes: tuple[tuple[int, float], ...] = ()
    """The same for copies to the host; they replace ``store``."""

    def __post_init__(self) -> None:
        for name in ("link", "memory", "flops"):
            if not getattr(self, name) > 0:
                raise SettingError(name, getattr(self, name), "more than 0")
        for name in ("link_latency", "issue", "wait"):
            if not getattr(self, name) >= 0:
                raise SettingError(name, getattr(self, name), "0 or more")

    def copy(self, nbytes: int, direction: str) -> float:
        """Seconds of one copy."""
        sizes = {"host_to_device": self.link_sizes, "device_to_host": self.store_sizes}
        if sizes.get(direction):
            return _between(sizes[direction], nbytes)
        if direction == "host_to_device":
            return self.link_latency + nbytes / self.link
        if direction == "device_to_host":
            return self.link_latency + nbytes / (self.store or self.link)
        return nbytes / self.memory

    def kernel(self, op: Op) -> float:
        """Seconds of one kernel: stated, or by its traffic and arithmetic, whichever is longer."""
        stated = op.tags.get(SECONDS)
        return (
            float(stated)
            if stated is not None
            else max(op.nbytes / self.memory, op.flops / self.flops)
        )


def _between(sizes: tuple[tuple[int, float], ...], nbytes: int) -> float:
    """Seconds of ``nbytes`` on straight lines; at the largest size's rate beyond it."""
    largest, slowest = sizes[-1]
    if nbytes >= largest:
        return slowest * nbytes / largest
    at = min(max(bisect.bisect_left(sizes, (nbytes, 0.0)), 1), len(sizes) - 1)
    (low, short), (high, long) = sizes[at - 1], sizes[at]
    return max(short + (long - short) * (nbytes - low) / (high - low), 0.0)


@dataclass(slots=True)
class _Engine:
    """A copy engine: busy for disjoint intervals, in order of time."""

    busy: list[tuple[float, float]] = field(default_factory=list)

    def take(self, ready: float, seconds: float) -> float:
        """Occupy the first gap from ``ready`` on that is long enough; returns its start."""
        at = bisect.bisect_left(self.busy, (ready, 0.0))
        if at > 0 and self.busy[at - 1][1] > ready:
            at -= 1
        start = ready
        while at < len(self.busy) and self.busy[at][0] < start + seconds:
            start = max(start, self.busy[at][1])
            at += 1
        bisect.insort(self.busy, (start, start + seconds))
        del self.busy[:-64]
        return start


class VirtualDevice(Device):
    """A device that only keeps time: ``now`` is the host's clock, in seconds from 0."""

    kind = "virtual"

    def __init__(self, costs: Costs, name: str = "virtual0", **common: Any) -> None:
        super().__init__(name, **common)
        self.costs = costs
        self.now = 0.0
        self.ops = 0
        self._engines = {"host_to_device": _Engine(), "device_to_host": _Engine()}
        if self.log is not None:
            self.log.clock = lambda: self.now

    def _alloc(self, buffer: Buffer, fill: int) -> None:
        return

    def _free(self, buffer: Buffer) -> None:
        return

    def _open_queue(self, queue: Queue) -> list[float]:
        return [0.0]

    def _close_queue(self, queue: Queue) -> None:
        return

    def _copy(self, dst: Span, src: Span) -> Callable[[Any], None]:
        return lambda _: None

    def _enqueue(self, queue: Queue, op: Op, entry: Entry | None) -> None:
        self.now += self.costs.issue
        self._place(queue, op, entry)

    def _place(self, queue: Queue, op: Op, entry: Entry | None) -> None:
        self.ops += 1
        free: list[float] = queue.native
        ready = max(free[0], self.now) + self.hooks.delay(op, queue.name)
        direction = str(op.tags.get("direction", ""))
        seconds = self.costs.copy(op.nbytes, direction) if direction else self.costs.kernel(op)
        engine = self._engines.get(direction)
        start = engine.take(ready, seconds) if engine else ready
        free[0] = start + seconds
        if entry is not None:
            entry.start, entry.end = start, start + seconds

    def _record(self, queue: Queue, event: Event, record: Record) -> None:
        self.now += self.costs.issue
        record.native = queue.native[0]

    def _wait(self, queue: Queue, event: Event, record: Record) -> None:
        self.now += self.costs.issue
        queue.native[0] = max(queue.native[0], record.native)

    def _sync_record(self, event: Event, record: Record) -> None:
        self.now = max(self.now, record.native) + self.costs.wait

    def _sync_queue(self, queue: Queue) -> None:
        self.now = max(self.now, queue.native[0]) + self.costs.wait

    def _launch(self, graph: Graph, entries: list[Entry | None]) -> None:
        self.now += self.costs.issue
        reached: dict[int, float] = {}
        for node, entry in zip(graph.nodes, entries, strict=True):
            if node.op is not None:
                self._place(node.queue, node.op, entry)
                continue
            assert node.record is not None
            free: list[float] = node.queue.native
            if node.kind == "record":
                reached[node.record.id] = free[0]
            else:
                free[0] = max(free[0], reached[node.record.id])
