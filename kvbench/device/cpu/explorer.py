"""A deterministic, adversarial executor: any legal order of the queued work may be the one it runs.

As loom and shuttle do for threads: one host thread, no sleeps, no luck. The picker chooses by
seed which queue's next item runs, and how far the queues lag behind the host. Choices are kept,
so that an order that shows a fault can be repeated and shortened.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvbench.device.api import Event, Graph, Queue, Record
from kvbench.device.cpu.memory import CpuDevice
from kvbench.device.oplog import Entry
from kvbench.device.ops import Op
from kvbench.errors import DeviceError


@dataclass
class Picker:
    """Chooses by seed: a random priority per queue, redrawn at random points (as in probabilistic
    concurrency testing, Burckhardt et al. 2010), or a given list of choices first."""

    seed: int
    script: Sequence[str] = ()
    """Queue names to prefer, one per step, before the seed decides."""
    chosen: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._priority: dict[str, float] = {}
        self._eager = self._random.choice((0.0, 0.0, 0.3, 1.0))
        self._redraw = self._random.choice((0.02, 0.1, 0.5))

    def eager(self) -> bool:
        """Whether to run something now although the host does not wait for it."""
        return self._random.random() < self._eager

    def pick(self, runnable: Sequence[str]) -> str:
        """The queue whose next item runs."""
        step = len(self.chosen)
        if step < len(self.script) and self.script[step] in runnable:
            choice = self.script[step]
        else:
            if self._random.random() < self._redraw:
                self._priority[self._random.choice(runnable)] = self._random.random()
            choice = max(
                runnable, key=lambda q: self._priority.setdefault(q, self._random.random())
            )
        self.chosen.append(choice)
        return choice


@dataclass(slots=True)
class _Item:
    op: Op | None = None
    entry: Entry | None = None
    opens: int = 0
    needs: int = 0


class Schedule:
    """The queues of all devices of one run, and what has been done so far."""

    def __init__(self, picker: Picker) -> None:
        self.picker = picker
        self.items: dict[str, deque[_Item]] = {}
        self.done: set[int] = set()
        self.steps = 0

    def runnable(self) -> list[str]:
        """Queues whose head may run now, in the order in which they were opened."""
        return [
            name
            for name, items in self.items.items()
            if items and (items[0].needs == 0 or items[0].needs in self.done)
        ]

    def step(self) -> None:
        """Run one item of one queue."""
        runnable = self.runnable()
        if not runnable:
            waiting = ", ".join(n for n, items in self.items.items() if items)
            raise DeviceError(f"deadlock: nothing can run; waiting: {waiting or 'nothing queued'}")
        item = self.items[self.picker.pick(runnable)].popleft()
        self.steps += 1
        if item.op is not None:
            try:
                item.op.run(None)
            except Exception as error:
                raise DeviceError(f"{item.op.label}: {error}") from error
        if item.opens:
            self.done.add(item.opens)
        if item.entry is not None:
            item.entry.start, item.entry.end = float(self.steps), float(self.steps + 1)

    def put(self, queue: str, item: _Item) -> None:
        """Queue an item; now and then something runs at once."""
        self.items[queue].append(item)
        while self.picker.eager() and self.runnable():
            self.step()
            if self.picker.eager():
                break

    def until(self, record: int) -> None:
        """Run until a record has passed."""
        while record not in self.done:
            self.step()


class ExplorerDevice(CpuDevice):
    """Executes by a Schedule; several devices of one run share it."""

    def __init__(self, name: str = "cpu0", *, schedule: Schedule, **common: Any) -> None:
        super().__init__(name, **common)
        self.schedule = schedule

    def _open_queue(self, queue: Queue) -> None:
        self.schedule.items[queue.name] = deque()

    def _close_queue(self, queue: Queue) -> None:
        self._drain(queue.name)
        del self.schedule.items[queue.name]

    def _drain(self, name: str) -> None:
        while self.schedule.items[name]:
            self.schedule.step()

    def _enqueue(self, queue: Queue, op: Op, entry: Entry | None) -> None:
        self.schedule.put(queue.name, _Item(op, entry))

    def _record(self, queue: Queue, event: Event, record: Record) -> None:
        self.schedule.put(queue.name, _Item(opens=record.id))

    def _wait(self, queue: Queue, event: Event, record: Record) -> None:
        self.schedule.put(queue.name, _Item(needs=record.id))

    def _sync_record(self, event: Event, record: Record) -> None:
        self.schedule.until(record.id)

    def _sync_queue(self, queue: Queue) -> None:
        self._drain(queue.name)

    def _launch(self, graph: Graph, entries: list[Entry | None]) -> None:
        """Nodes of other queues than the origin run as branches of their own, as on CUDA."""
        ids: dict[int, int] = {}
        start = Record(graph.origin.name)
        self.schedule.put(graph.origin.name, _Item(opens=start.id))
        begun = {graph.origin.name}
        for node, entry in zip(graph.nodes, entries, strict=True):
            name = graph.branch(node.queue)
            if name not in begun:
                begun.add(name)
                self.schedule.items.setdefault(name, deque())
                self.schedule.put(name, _Item(needs=start.id))
            if node.op is not None:
                self.schedule.put(name, _Item(node.op, entry))
                continue
            assert node.record is not None
            rid = ids.setdefault(node.record.id, Record("").id)
            self.schedule.put(name, _Item(opens=rid) if node.kind == "record" else _Item(needs=rid))
