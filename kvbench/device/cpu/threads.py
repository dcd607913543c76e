"""The cpu device proper: each queue is a worker thread, so a missing wait really corrupts."""

from __future__ import annotations

import _thread
import ctypes
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from kvbench.device.api import Event, Graph, Queue, Record
from kvbench.device.cpu.charge import WaitCharge
from kvbench.device.cpu.limits import measure
from kvbench.device.cpu.link import Link
from kvbench.device.cpu.memory import CpuDevice
from kvbench.device.limits import Limits
from kvbench.device.oplog import Entry
from kvbench.device.ops import Op
from kvbench.errors import DeviceError

SWITCH_INTERVAL = 1e-4
"""Seconds; Python's 5 ms would let a copier oversleep by that much beside pure-Python code."""


PR_SET_TIMERSLACK = 29


def sleep_precisely() -> None:
    """Let this thread's sleeps end on time: Linux otherwise adds 50 µs to each.

    A transfer that stands alone cannot make up for a sleep that ran long, transfers in a row can:
    without this the ordered path would pay for its copies what the pipelined path does not.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


class Latch:
    """Opens once; a thread that waits before that blocks without spinning."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def open(self) -> None:
        """Let everyone through, now and later."""
        self._lock.release()

    def wait(self) -> None:
        """Block until open."""
        self._lock.acquire()
        self._lock.release()


class _Worker(threading.Thread):
    """Runs one queue's items in order until told to stop."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.items: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.streaming = False
        """Whether the worker's last item was a transfer and it has not waited since: only then may
        the next transfer make up for a sleep that ran long. A kernel in between leaves the link
        idle, and an idle link earns no credit."""

    def run(self) -> None:
        sleep_precisely()
        while True:
            self.streaming = self.streaming and not self.items.empty()
            item = self.items.get()
            if item is None:
                return
            item()


class ThreadDevice(CpuDevice):
    """Worker threads, real copies, a link that can be slowed, and injected delays."""

    def __init__(
        self,
        name: str = "cpu0",
        *,
        link: Link | None = None,
        charge: WaitCharge | None = None,
        **common: Any,
    ) -> None:
        super().__init__(name, **common)
        self.link, self.charge = link or Link(), charge or WaitCharge()
        self.failure: Exception | None = None
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)

    def close(self) -> None:
        """Finish what is queued and join the workers."""
        super().close()
        sys.setswitchinterval(self._switch_interval)

    def limits(self) -> Limits:
        """The link as it is slowed, and what one thread reads."""
        return measure(self.link)

    # ------------------------------------------------------------------ queues
    def _open_queue(self, queue: Queue) -> _Worker:
        worker = _Worker(queue.name)
        worker.start()
        return worker

    def _close_queue(self, queue: Queue) -> None:
        worker: _Worker = queue.native
        worker.items.put(None)
        worker.join()

    # -------------------------------------------------------------------- work
    def _enqueue(self, queue: Queue, op: Op, entry: Entry | None) -> None:
        worker: _Worker = queue.native
        worker.items.put(lambda: self._run(worker, op, entry))

    def _run(self, worker: _Worker, op: Op, entry: Entry | None) -> None:
        if self.failure is not None:
            return
        queued, worker.streaming = worker.streaming, False
        delay = self.hooks.delay(op, worker.name)
        if delay > 0:
            time.sleep(delay)
        start = time.perf_counter()
        try:
            if op.tags.get("direction") == "host_to_device":
                self.link.transfer(lambda: op.run(None), op.nbytes, queued=queued)
                worker.streaming = True
            else:
                op.run(None)
        except Exception as error:  # noqa: BLE001 - carried to the host, which raises it
            self.failure = error
        if entry is not None:
            entry.start, entry.end = start, time.perf_counter()

    def _record(self, queue: Queue, event: Event, record: Record) -> None:
        latch = record.native = Latch()
        queue.native.items.put(latch.open)

    def _wait(self, queue: Queue, event: Event, record: Record) -> None:
        worker: _Worker = queue.native
        latch: Latch = record.native

        def block() -> None:
            worker.streaming = False
            latch.wait()

        worker.items.put(block)

    # -------------------------------------------------------------------- host
    def _sync_record(self, event: Event, record: Record) -> None:
        record.native.wait()
        self.charge.pay()
        self._raise_failure()

    def _sync_queue(self, queue: Queue) -> None:
        latch = Latch()
        queue.native.items.put(latch.open)
        latch.wait()
        self.charge.pay()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise DeviceError(f"{self.name}: {self.failure}") from self.failure

    # ------------------------------------------------------------------ graphs
    def _launch(self, graph: Graph, entries: list[Entry | None]) -> None:
        latches: dict[int, Latch] = {}
        for node, entry in zip(graph.nodes, entries, strict=True):
            if node.op is not None:
                self._enqueue(node.queue, node.op, entry)
                continue
            assert node.record is not None
            if node.kind == "record":
                latch = latches[node.record.id] = Latch()
                node.queue.native.items.put(latch.open)
            else:
                self._wait(node.queue, Event(""), Record("", latches[node.record.id]))
