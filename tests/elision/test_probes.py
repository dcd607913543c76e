"""Probes of S7: each with graphs on and off, stock against elided, under both executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kvbench.device.api import Device, Event, Graph, Queue
from kvbench.device.context import Context
from kvbench.device.cpu.explorer import ExplorerDevice, Picker, Schedule
from kvbench.device.cpu.threads import ThreadDevice
from kvbench.device.memory import Buffer, Span
from kvbench.device.oplog import OpLog
from kvbench.device.ops import Op
from kvbench.device.races import check
from kvbench.errors import DeviceError


class Bench:
    """A device with one queue, and helpers that work eagerly or through a captured graph."""

    def __init__(self, mode: Any, graphs: bool, explore: bool) -> None:
        self.log = OpLog()
        common: dict[str, Any] = {"log": self.log}
        self.schedule = Schedule(Picker(5))
        self.explore, self.mode, self.graphs = explore, mode, graphs
        self.first = self.device("one", **common)
        self.queue = self.first.queue("compute")
        self.out: list[bytes] = []
        self._graph: dict[str, Graph] = {}

    def device(self, name: str, **common: Any) -> Device:
        context = Context(mode=self.mode)
        if self.explore:
            return ExplorerDevice(name, schedule=self.schedule, context=context, **common)
        return ThreadDevice(name, context=context, **common)

    def do(self, name: str, issue: Callable[[], None]) -> None:
        """Issue work at once, or capture it under ``name`` the first time and launch it."""
        if not self.graphs:
            issue()
            return
        if name not in self._graph:
            with self.first.capture(self.queue) as graph:
                issue()
            self._graph[name] = graph
        self.first.launch(self._graph[name])

    def fill(self, buffer: Buffer, value: int, device: Device | None = None) -> Op:
        def run(_: Any) -> None:
            buffer.raw[:] = value

        return Op("kernel", f"fill {value}", run, (), (buffer.span(),), site="fill")

    def add(self, buffer: Buffer) -> Op:
        def run(_: Any) -> None:
            buffer.raw[:] += 1

        return Op("kernel", "add", run, (buffer.span(),), (buffer.span(),), site="add")

    def read(self, host: Buffer) -> None:
        """Two getters in a row, then the host's access."""
        self.first.synchronize(self.queue, "get")
        self.first.synchronize(self.queue, "get again")
        self.first.host("read", lambda: self.out.append(host.raw.tobytes()), reads=(host.span(),))


def copy_after_synchronize(b: Bench) -> None:
    near, far = b.first.alloc("near", 64), b.first.alloc("far", 64, "host")
    for value in (3, 4):
        b.do(f"fill{value}", lambda value=value: b.first.submit(b.queue, b.fill(near, value)))
        b.first.synchronize(b.queue, "before the copy")
        b.first.copy(b.queue, far.span(), near.span(), site="read")
        b.read(far)


def copy_2d(b: Bench) -> None:
    near, far = b.first.alloc("near", 64), b.first.alloc("far", 128, "host")
    b.do("fill", lambda: b.first.submit(b.queue, b.fill(near, 9)))
    b.first.synchronize(b.queue, "before the copy")
    wide = Span(far, 0, 8, 8, 16)
    b.first.copy(b.queue, wide, Span(near, 0, 8, 8, 8), site="read")
    b.read(far)


def copy_between_contexts(b: Bench) -> None:
    other = b.device("other", log=b.log)
    queue, event = other.queue("compute"), other.event("made")
    theirs, ours = other.alloc("theirs", 64), b.first.alloc("ours", 64)
    host = b.first.alloc("host", 64, "host")
    other.submit(queue, b.fill(theirs, 7))
    other.record(queue, event)
    b.first.synchronize(b.queue, "nothing here")
    b.first.wait(b.queue, event, "made")
    b.first.copy(b.queue, ours.span(), theirs.span(), site="between")
    b.do("add", lambda: b.first.submit(b.queue, b.add(ours)))
    b.first.copy(b.queue, host.span(), ours.span(), site="read")
    b.read(host)
    other.synchronize(queue, "end")
    other.close()


def events(b: Bench) -> None:
    side = b.first.queue("side")
    buffer, host = b.first.alloc("b", 64), b.first.alloc("host", 64, "host")
    done: Event = b.first.event("done")
    for value in (1, 2):
        b.first.submit(side, b.fill(buffer, value))
        b.first.record(side, done)
        b.first.wait(b.queue, done, "done")
        b.do("add", lambda: b.first.submit(b.queue, b.add(buffer)))
        b.first.copy(b.queue, host.span(), buffer.span(), site="read")
        b.read(host)
        b.first.synchronize(done, "event")
        b.first.synchronize(side, "side")


def graph_reuse(b: Bench) -> None:
    buffer, host = b.first.alloc("b", 64), b.first.alloc("host", 64, "host")
    for _ in range(4):
        b.do("add", lambda: b.first.submit(b.queue, b.add(buffer)))
        b.first.synchronize(b.queue, "between launches")
        b.do("add", lambda: b.first.submit(b.queue, b.add(buffer)))
        b.first.copy(b.queue, host.span(), buffer.span(), site="read")
        b.read(host)


def f32_matrix_graph(b: Bench) -> None:
    w, x, y = (b.first.alloc(n, s * 4) for n, s in (("w", 16 * 16), ("x", 16), ("y", 16)))
    host = b.first.alloc("host", 64, "host")

    def product(_: Any) -> None:
        matrix = w.raw.view(np.float32)[:256].reshape(16, 16)
        np.dot(matrix, x.raw.view(np.float32)[:16], out=y.raw.view(np.float32)[:16])

    def start(_: Any) -> None:
        w.raw.view(np.float32)[:256] = np.arange(256, dtype=np.float32)
        x.raw.view(np.float32)[:16] = 0.5

    b.first.submit(b.queue, Op("kernel", "start", start, (), (w.span(), x.span())))
    for _ in range(2):
        b.first.synchronize(b.queue, "before")
        b.do(
            "product",
            lambda: b.first.submit(
                b.queue, Op("kernel", "product", product, (w.span(), x.span()), (y.span(),))
            ),
        )
        b.first.copy(b.queue, host.span(0, 64), y.span(0, 64), site="read")
        b.read(host)


def parallel_scheduling(b: Bench) -> None:
    """Two queues at once; each has a mark of its own."""
    side = b.first.queue("side")
    left, right = b.first.alloc("left", 64, "host"), b.first.alloc("right", 64, "host")
    for value in (5, 6):
        b.do(f"left{value}", lambda value=value: b.first.submit(b.queue, b.fill(left, value)))
        b.first.submit(side, b.fill(right, value + 1))
        b.read(left)
        b.first.synchronize(side, "other queue")
        b.first.synchronize(side, "other queue again")
        b.first.host("r", lambda: b.out.append(right.raw.tobytes()), reads=(right.span(),))


def submission_fails_half_way(b: Bench) -> None:
    """The first part is in flight when the second is refused: the mark must stand (S8)."""
    host = b.first.alloc("host", 64, "host")
    b.first.synchronize(b.queue, "clean")
    bad = Span(host, 0, 8)
    with pytest.raises(DeviceError, match="shapes differ"):
        b.do("fill", lambda: b.first.submit(b.queue, b.fill(host, 8)))
        b.first.copy(b.queue, bad, host.span(), site="refused")
    b.read(host)


def growing_output_buffers(b: Bench) -> None:
    near = b.first.alloc("near", 256)
    host = b.first.alloc("host", 64, "host")
    for size in (64, 128, 256):
        b.first.synchronize(b.queue, "grow")
        b.first.free(host)
        host = b.first.alloc("host", size, "host")
        b.do(f"fill{size}", lambda size=size: b.first.submit(b.queue, b.fill(near, size % 251)))
        b.first.copy(b.queue, host.span(), near.span(0, size), site="read")
        b.read(host)


def sampler(b: Bench, *, on_device: bool) -> None:
    logits, chosen = b.first.alloc("logits", 64), b.first.alloc("chosen", 64)
    host = b.first.alloc("host", 64, "host")

    def draw(_: Any) -> None:
        logits.raw[:] = np.arange(64)[::-1]

    def choose(_: Any) -> None:
        chosen.raw[:1] = np.argmax(logits.raw)

    b.do("draw", lambda: b.first.submit(b.queue, Op("kernel", "d", draw, (), (logits.span(),))))
    b.first.synchronize(b.queue, "graph")
    if on_device:
        b.first.submit(b.queue, Op("kernel", "c", choose, (logits.span(),), (chosen.span(0, 1),)))
    source = chosen if on_device else logits
    b.first.copy(b.queue, host.span(), source.span(), site="read")
    b.read(host)


def mixed_host_fallback(b: Bench) -> None:
    """A layer's work is done by the host in mid-graph, and its result goes back."""
    near, host = b.first.alloc("near", 64), b.first.alloc("host", 64, "host")
    for _ in range(3):
        b.do("add", lambda: b.first.submit(b.queue, b.add(near)))
        b.first.copy(b.queue, host.span(), near.span(), site="out")
        b.first.synchronize(b.queue, "fallback")

        def double() -> None:
            host.raw[:] *= 2

        b.first.host("double", double, reads=(host.span(),), writes=(host.span(),))
        b.first.copy(b.queue, near.span(), host.span(), site="in")
        b.first.synchronize(b.queue, "after upload")
        b.first.host("reuse", lambda: host.raw.fill(0), writes=(host.span(),))
        b.do("add", lambda: b.first.submit(b.queue, b.add(near)))
        b.first.copy(b.queue, host.span(), near.span(), site="read")
        b.read(host)


PROBES: dict[str, Callable[[Bench], None]] = {
    "copy after synchronize": copy_after_synchronize,
    "2D copy": copy_2d,
    "copy between contexts": copy_between_contexts,
    "events": events,
    "graph reuse": graph_reuse,
    "f32 matrix graph": f32_matrix_graph,
    "parallel scheduling": parallel_scheduling,
    "submission fails half-way": submission_fails_half_way,
    "growing output buffers": growing_output_buffers,
    "sampler on the device": lambda b: sampler(b, on_device=True),
    "sampler on the host": lambda b: sampler(b, on_device=False),
    "mixed host fallback": mixed_host_fallback,
}


def outcome(name: str, mode: str, graphs: bool, explore: bool) -> tuple[list[bytes], Bench]:
    bench = Bench(mode, graphs, explore)
    PROBES[name](bench)
    bench.first.close()
    return bench.out, bench


@pytest.fixture(params=[False, True], ids=["eager", "graphs"])
def graphs(request: pytest.FixtureRequest) -> Iterator[bool]:
    yield request.param


@pytest.mark.parametrize("explore", [False, True], ids=["threads", "explorer"])
@pytest.mark.parametrize("name", PROBES)
def test_probe_s7(name: str, graphs: bool, explore: bool) -> None:
    wanted, stock = outcome(name, "stock", graphs, explore)
    found, elided = outcome(name, "elided", graphs, explore)
    assert wanted and found == wanted
    assert check(elided.log) == [] == check(stock.log)
    sites = elided.first.context.sites
    assert sites["get again"].made == 0 and sites["get again"].elided == len(
        [s for s in stock.log.entries if s.kind == "sync" and s.site == "get again"]
    )
    met = {s: c.made + c.elided for s, c in sites.items()}
    assert met == {s: c.made for s, c in stock.first.context.sites.items()}


def test_a_queue_is_a_queue_of_its_own_context() -> None:
    with ThreadDevice("a") as one, ThreadDevice("b") as other:
        queue: Queue = one.queue("compute")
        one.submit(queue, Op("kernel", "n", lambda _: None))
        assert one.context.used[queue.name] and not other.context.used[queue.name]
