"""The device interface: queues, events, copies, kernels, graphs, and what the host may touch.

One interface, several executors. This module keeps the books that must be the same everywhere:
what was declared to be read and written, which record a wait binds (H21: the latest one at the
time of the call; none at all is a no-op), the used marks of the context, the op log and the
counts of API calls. A subclass only executes.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from kvbench.device.context import Context
from kvbench.device.hooks import Hooks
from kvbench.device.limits import Limits
from kvbench.device.memory import Buffer, Space, Span
from kvbench.device.oplog import Entry, OpLog
from kvbench.device.ops import Op
from kvbench.device.ranges import ranged
from kvbench.errors import DeviceError, OutOfDeviceMemory

_record_ids = itertools.count(1)
_launch_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a device declares (T16); the transport asks for all three of the first."""

    queue_event_waits: bool = True
    async_copies: bool = True
    pinned_host: bool = True
    graphs: bool = True
    sliced: bool = False
    """Tensor-parallel slice of a larger device: never eligible for the transport."""
    input_copies: int = 1
    """Copies kept of each graph input; more than one is multi-buffering of its own (T6)."""


@dataclass(eq=False, slots=True)
class Queue:
    """An ordered queue of work (a CUDA stream, a worker thread)."""

    name: str
    device: Device
    native: Any = field(default=None, repr=False)


@dataclass(eq=False, slots=True)
class Record:
    """One recording of an event: a point in a queue's order."""

    queue: str
    native: Any = field(default=None, repr=False)
    id: int = field(default_factory=lambda: next(_record_ids))
    graph: int = 0
    """Number of the capture it was made in, 0 outside any: an edge inside that graph only."""


@dataclass(eq=False, slots=True)
class Event:
    """A reusable name for the latest point recorded under it."""

    name: str
    latest: Record | None = None
    native: Any = field(default=None, repr=False)


@dataclass(slots=True)
class Node:
    """One step of a captured graph."""

    kind: Literal["op", "record", "wait"]
    queue: Queue
    op: Op | None = None
    record: Record | None = None
    site: str = ""


@dataclass(eq=False, slots=True)
class Graph:
    """A captured sequence over several queues, rejoined into the queue it is launched on."""

    origin: Queue
    nodes: list[Node] = field(default_factory=list)
    native: Any = field(default=None, repr=False)
    number: int = field(default_factory=lambda: next(_launch_ids))
    alive: bool = True

    def branch(self, queue: Queue) -> str:
        """The name of the branch that runs ``queue``'s nodes: not the queue itself but for the
        origin, since a launch is not ordered after earlier work on other queues."""
        return queue.name if queue is self.origin else f"graph:{queue.name}"


class Device(ABC):
    """A machine that runs queued work. Not thread-safe: one host thread drives it."""

    kind: str
    capabilities: Capabilities = Capabilities()

    def __init__(
        self,
        name: str,
        *,
        log: OpLog | None = None,
        hooks: Hooks | None = None,
        context: Context | None = None,
        capacity: int | None = None,
        poison: bool = False,
    ) -> None:
        """``capacity``: bytes of device memory (None = what there is); ``poison``: fresh memory
        is filled with 0xFF bytes, NaN in every float type used here (T17a)."""
        self.name = name
        self.log = log
        self.hooks = hooks or Hooks()
        self.context = context or Context()
        self.capacity = capacity
        self.poison = poison
        self.calls: Counter[str] = Counter()
        self.used_bytes: dict[Space, int] = {"device": 0, "host": 0}
        self.peak_bytes: dict[Space, int] = {"device": 0, "host": 0}
        self.live_events = 0
        self.queues: dict[str, Queue] = {}
        self._capture: Graph | None = None

    # ------------------------------------------------------------------ memory
    def alloc(
        self,
        name: str,
        nbytes: int,
        space: Space = "device",
        *,
        pinned: bool = True,
        clear: bool = True,
    ) -> Buffer:
        """Allocate ``nbytes`` (uint8, 256-byte aligned). Cleared unless ``clear`` is False.

        Raises OutOfDeviceMemory with what was asked for and what is left.
        """
        if space == "device" and nbytes > self.free_bytes():
            raise OutOfDeviceMemory(
                f"{self.name}: {name} needs {nbytes} bytes of device memory, "
                f"{self.free_bytes()} are free"
            )
        buffer = Buffer(f"{self.name}/{name}", space, nbytes, pinned=pinned and space == "host")
        clear = not self.poison or (clear and self.hooks.clears(name))
        buffer.raw = self._alloc(buffer, fill=0 if clear else 0xFF)
        self.used_bytes[space] += nbytes
        self.peak_bytes[space] = max(self.peak_bytes[space], self.used_bytes[space])
        if self.log is not None:
            self.log.add(Entry("alloc", "host", f"alloc {name}", writes=(buffer.span(),)))
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Give memory back. The caller has waited for its last reader (T7, H16): this does not."""
        if not buffer.alive:
            raise DeviceError(f"{buffer.name} is freed twice")
        buffer.alive = False
        self.used_bytes[buffer.space] -= buffer.nbytes
        if self.log is not None:
            self.log.add(Entry("free", "host", f"free {buffer.name}", writes=(buffer.span(),)))
        self._free(buffer)

    def free_bytes(self) -> int:
        """Device bytes still to be had."""
        return (1 << 62 if self.capacity is None else self.capacity) - self.used_bytes["device"]

    # ------------------------------------------------------- queues and events
    def queue(self, name: str) -> Queue:
        """A new queue; its full name is unique in the process of a run."""
        if self.hooks.fail("queue"):
            raise DeviceError(f"{self.name}: queue {name} could not be created")
        full = f"{self.name}/{name}"
        if full in self.queues:
            raise DeviceError(f"{self.name}: queue {name} exists already")
        queue = Queue(full, self)
        self.queues[full] = queue
        queue.native = self._open_queue(queue)
        return queue

    def drop_queue(self, queue: Queue) -> None:
        """End a queue whose work is over."""
        del self.queues[queue.name]
        self._close_queue(queue)

    def event(self, name: str) -> Event:
        """A new event, never recorded: waiting on it is a no-op until it is (H21)."""
        if self.hooks.fail("event"):
            raise DeviceError(f"{self.name}: event {name} could not be created")
        self.live_events += 1
        return Event(f"{self.name}/{name}")

    def drop_event(self, event: Event) -> None:
        """Forget an event."""
        event.latest = None
        self.live_events -= 1

    # -------------------------------------------------------------------- work
    def submit(self, queue: Queue, op: Op) -> None:
        """Queue one operation. The queue is marked used first, even if this fails (S8)."""
        op = self.hooks.alter(op, queue.name)
        self.calls[op.kind if op.kind != "copy" else "copy_async"] += 1
        with self.context.acquire(queue.name, queue.native, op.site):
            if self._capture is not None:
                self._capture.nodes.append(Node("op", queue, op))
                self._capture_op(queue, op)
                return
            self._enqueue(queue, op, self._log_op(queue, op))

    def copy(
        self,
        queue: Queue,
        dst: Span,
        src: Span,
        *,
        site: str,
        label: str = "",
        split: int = -1,
        slot: int = -1,
    ) -> None:
        """Queue a copy between two spans of equal shape; 2D where ``count`` > 1."""
        if (dst.length, dst.count) != (src.length, src.count):
            raise DeviceError(f"copy {src.describe()} -> {dst.describe()}: shapes differ")
        dst, src = self.hooks.copy_spans(dst, src, site, split)
        if dst.length == 0:
            return
        op = Op(
            "copy",
            label or site,
            self._copy(dst, src),
            reads=(src,),
            writes=(dst,),
            site=site,
            split=split,
            slot=slot,
            nbytes=dst.nbytes,
            tags={"direction": f"{src.buffer.space}_to_{dst.buffer.space}"},
        )
        self.submit(queue, op)

    def record(self, queue: Queue, event: Event) -> Record:
        """Record ``event`` at the queue's present end."""
        self.calls["event_record"] += 1
        with self.context.acquire(queue.name, queue.native, "record"):
            record = Record(queue.name)
            if not self.hooks.keep_record(queue.name, event.name):
                return record
            event.latest = record
            if self._capture is not None:
                record.graph = self._capture.number
                self._capture.nodes.append(Node("record", queue, record=record))
                self._capture_record(queue, event, record)
                return record
            if self.log is not None:
                self.log.add(Entry("record", queue.name, event.name, record=record.id))
            self._record(queue, event, record)
            return record

    def wait(self, queue: Queue, event: Event, site: str) -> None:
        """Make later work of ``queue`` wait for the latest record of ``event`` (H21)."""
        if not self.hooks.keep_wait(queue.name, site, event.name):
            return
        self.calls["event_wait"] += 1
        record = event.latest
        with self.context.acquire(queue.name, queue.native, "wait"):
            if self._capture is not None:
                if record is not None and record.graph != self._capture.number:
                    raise DeviceError(
                        f"capture on {queue.name}: {event.name} was recorded outside this capture"
                    )
                if record is not None:
                    self._capture.nodes.append(Node("wait", queue, record=record, site=site))
                    self._capture_wait(queue, event, record)
                return
            if record is not None and record.graph:
                raise DeviceError(f"{event.name} was recorded inside a capture: not waitable here")
            if self.log is not None:
                self.log.add(
                    Entry("wait", queue.name, event.name, site, record=record.id if record else 0)
                )
            if record is not None:
                self._wait(queue, event, record)

    # -------------------------------------------------------------------- host
    def synchronize(self, target: Queue | Event, site: str, *, for_result: bool = True) -> None:
        """Block the host until a queue is empty, or an event's latest record has passed.

        Waits are counted by ``site`` and may be elided (context.py). ``for_result`` False: the
        host touches nothing of what was queued before it waits again; the wait is redundant.
        """
        if not self.hooks.keep_sync(target.name, site):
            return
        if isinstance(target, Event):
            record = target.latest
            self.context.synchronize_record(
                record.queue if record else "",
                record.id if record else 0,
                site,
                lambda: self._wait_for_record(target, record, site),
            )
            return
        self.context.synchronize(
            target.name, site, lambda: self._wait_for_queue(target, site), for_result=for_result
        )

    def _wait_for_record(self, event: Event, record: Record | None, site: str) -> None:
        self.calls["event_synchronize"] += 1
        entry = Entry("sync", "host", event.name, site, record=record.id if record else 0)
        if self.log is not None:
            self.log.add(entry)
        if record is not None:
            with ranged(f"wait {site}"):
                self._sync_record(event, record)
        if self.log is not None:
            entry.start, entry.end = entry.issued, self.log.clock()

    def _wait_for_queue(self, queue: Queue, site: str) -> int:
        """Wait, and return a number that covers every record made on the queue so far."""
        self.calls["queue_synchronize"] += 1
        covers = next(_record_ids)
        started = self.log.clock() if self.log is not None else 0.0
        with ranged(f"wait {site}"):
            self._sync_queue(queue)
        if self.log is not None:
            entry = Entry("sync", "host", queue.name, site, tags={"queue": queue.name})
            self.log.add(entry)
            entry.start, entry.end, entry.issued = started, entry.issued, started
        return covers

    def host(
        self,
        label: str,
        run: Callable[[], Any],
        *,
        reads: tuple[Span, ...] = (),
        writes: tuple[Span, ...] = (),
        site: str = "host",
    ) -> Any:
        """Do ``run`` on the host thread now, declared like any other access."""
        if self.log is not None:
            self.log.add(Entry("host", "host", label, site, reads=reads, writes=writes))
        return run()

    # ------------------------------------------------------------------ graphs
    @contextmanager
    def capture(self, origin: Queue) -> Iterator[Graph]:
        """Capture what is submitted inside, instead of running it. Forked queues must rejoin."""
        if self._capture is not None:
            raise DeviceError(f"{self.name}: a capture is already under way")
        if self.hooks.fail("graph"):
            raise OutOfDeviceMemory(f"{self.name}: no memory for a graph")
        graph = Graph(origin)
        self._capture = graph
        self.calls["capture"] += 1
        try:
            self._begin_capture(graph)
            yield graph
            _check_rejoined(graph)
        except BaseException:
            self._capture = None
            self._end_capture(graph, ok=False)
            raise
        self._capture = None
        self._end_capture(graph, ok=True)

    def launch(self, graph: Graph) -> None:
        """Run a captured graph on the queue it was captured from: one API call."""
        if not graph.alive:
            raise DeviceError(f"{self.name}: graph {graph.number} was destroyed")
        self.calls["graph_launch"] += 1
        with self.context.acquire(graph.origin.name, graph.origin.native, "launch"):
            self._launch(graph, self._log_launch(graph))

    def drop_graph(self, graph: Graph) -> None:
        """Destroy a graph; the caller has waited for its last launch (H16)."""
        graph.alive = False
        graph.native = None
        graph.nodes.clear()

    # ----------------------------------------------------------------- closing
    def close(self) -> None:
        """End all queues, work in flight included. Safe to call twice."""
        for queue in list(self.queues.values()):
            self._close_queue(queue)
        self.queues.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --------------------------------------------------------------------- log
    def _log_op(self, queue: Queue, op: Op, branch: str = "", graph: int = 0) -> Entry | None:
        if self.log is None:
            return None
        reads, writes = op.spans()
        return self.log.add(
            Entry(
                "op",
                branch or queue.name,
                op.label,
                op.site,
                reads,
                writes,
                split=op.split,
                slot=op.slot,
                nbytes=op.nbytes,
                graph=graph,
                tags=op.tags,
            )
        )

    def _log_launch(self, graph: Graph) -> list[Entry | None]:
        """Log a launch as its nodes: branches are queues of their own, as CUDA runs them."""
        if self.log is None:
            return [None] * len(graph.nodes)
        number = next(_launch_ids)
        self.log.add(Entry("launch", graph.origin.name, "graph", graph=number))
        renamed: dict[int, int] = {}
        entries: list[Entry | None] = []
        for node in graph.nodes:
            name = graph.branch(node.queue)
            if node.op is not None:
                entry = self._log_op(node.queue, node.op, name, number)
            else:
                assert node.record is not None
                rid = renamed.setdefault(node.record.id, next(_record_ids))
                entry = self.log.add(
                    Entry(node.kind, name, node.site, node.site, record=rid, graph=number)
                )
            entries.append(entry)
        return entries

    # ------------------------------------------------------ what a device does
    @abstractmethod
    def _alloc(self, buffer: Buffer, fill: int) -> Any: ...
    @abstractmethod
    def _free(self, buffer: Buffer) -> None: ...
    @abstractmethod
    def _open_queue(self, queue: Queue) -> Any: ...
    @abstractmethod
    def _close_queue(self, queue: Queue) -> None: ...
    @abstractmethod
    def _copy(self, dst: Span, src: Span) -> Callable[[Any], None]: ...
    @abstractmethod
    def _enqueue(self, queue: Queue, op: Op, entry: Entry | None) -> None: ...
    @abstractmethod
    def _record(self, queue: Queue, event: Event, record: Record) -> None: ...
    @abstractmethod
    def _wait(self, queue: Queue, event: Event, record: Record) -> None: ...
    @abstractmethod
    def _sync_record(self, event: Event, record: Record) -> None: ...
    @abstractmethod
    def _sync_queue(self, queue: Queue) -> None: ...
    @abstractmethod
    def _launch(self, graph: Graph, entries: list[Entry | None]) -> None: ...

    def limits(self) -> Limits | None:
        """Measure what the link and the memory can do; None where that means nothing."""
        return None

    # Executors that replay the recorded nodes need nothing during the capture itself.
    def _begin_capture(self, graph: Graph) -> None:
        return

    def _end_capture(self, graph: Graph, *, ok: bool) -> None:
        return

    def _capture_op(self, queue: Queue, op: Op) -> None:
        return

    def _capture_record(self, queue: Queue, event: Event, record: Record) -> None:
        return

    def _capture_wait(self, queue: Queue, event: Event, record: Record) -> None:
        return


def _check_rejoined(graph: Graph) -> None:
    """A queue forked inside a capture must end in a record that another queue waits for."""
    last: dict[str, Node] = {}
    waited: set[int] = set()
    for node in graph.nodes:
        if node.kind == "wait" and node.record is not None:
            waited.add(node.record.id)
        last[node.queue.name] = node
    for name, node in last.items():
        joined = node.kind == "record" and node.record is not None and node.record.id in waited
        if name != graph.origin.name and not joined:
            raise DeviceError(f"capture: queue {name} was forked and not rejoined")
