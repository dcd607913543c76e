"""The CUDA device: queues, events, memory, copies and captured graphs, on a real GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvbench.device.api import Event, Queue
from kvbench.device.cuda.device import CudaDevice
from kvbench.device.cuda.driver import Launch, function
from kvbench.device.hooks import Hooks
from kvbench.device.memory import Buffer
from kvbench.device.oplog import OpLog
from kvbench.device.ops import Op
from kvbench.device.races import check
from kvbench.errors import DeviceError, OutOfDeviceMemory

pytestmark = pytest.mark.cuda


class Slow(Hooks):
    """Every operation of one site is 20 ms late; waits at ``drop`` are not made."""

    def __init__(self, site: str, drop: str = "") -> None:
        self.site, self.drop = site, drop

    def delay(self, op: Op, queue: str) -> float:
        return 0.02 if op.site == self.site else 0.0

    def keep_wait(self, queue: str, site: str, event: str) -> bool:
        return site != self.drop


def chain(device: CudaDevice) -> tuple[Queue, Queue, Event, Buffer, Buffer, Buffer]:
    first, second = device.queue("first"), device.queue("second")
    source = device.alloc("source", 1 << 20, "host")
    source.raw[:] = np.arange(1 << 20, dtype=np.uint32).view(np.uint8)[: 1 << 20]
    middle = device.alloc("middle", 1 << 20)
    target = device.alloc("target", 1 << 20, "host")
    return first, second, device.event("ready"), source, middle, target


def pass_on(device: CudaDevice, parts: Any) -> None:
    first, second, ready, source, middle, target = parts
    device.copy(first, middle.span(), source.span(), site="early")
    device.record(first, ready)
    device.wait(second, ready, "ready")
    device.copy(second, target.span(), middle.span(), site="back")


def test_a_wait_orders_queues(device: CudaDevice) -> None:
    device.hooks = Slow("early")
    parts = chain(device)
    pass_on(device, parts)
    device.synchronize(parts[1], "test")
    np.testing.assert_array_equal(parts[5].raw, parts[3].raw)


def test_a_missing_wait_shows(device: CudaDevice) -> None:
    """A planted fault: without the wait the late copy is overtaken, and the check names it."""
    device.hooks, device.log = Slow("early", drop="ready"), OpLog()
    parts = chain(device)
    pass_on(device, parts)
    device.synchronize(parts[1], "test")
    assert not (parts[5].raw == parts[3].raw).all()
    device.synchronize(parts[0], "test")
    assert check(device.log)


@pytest.mark.parametrize("drop", ["", "ready"])
def test_captured(device: CudaDevice, drop: str) -> None:
    """Two queues in one graph, fork and join; delays and dropped waits are baked in."""
    device.hooks = Slow("early", drop)
    parts = chain(device)
    first, second, source, target = parts[0], parts[1], parts[3], parts[5]
    fork, join = device.event("fork"), device.event("join")
    function("tokens", "spin", WT="F32")
    with device.capture(second) as graph:
        device.record(second, fork)
        device.wait(first, fork, "fork")
        pass_on(device, parts)
        device.record(first, join)
        device.wait(second, join, "join")
    for round_ in (3, 4, 5):
        source.raw[:] = round_
        device.launch(graph)
        device.synchronize(second, "test")
        assert (target.raw == round_).all() == (not drop)
    device.drop_graph(graph)
    with pytest.raises(DeviceError, match="was destroyed"):
        device.launch(graph)


def test_programmatic_launch_keeps_order(device: CudaDevice) -> None:
    """A kernel launched early still sees all that was before it: kernels, copies and events."""
    queue, other = device.queue("q"), device.queue("o")
    ready = device.event("ready")
    a, b = device.alloc("a", 4096), device.alloc("b", 4096)
    host = device.alloc("host", 4096, "host")
    host.raw[:] = 0x11
    import ctypes

    from kvbench.device.cuda import arguments

    def put(to: Buffer, of: Buffer) -> Op:
        state = zero.raw.data.ptr
        args = arguments.Put(of.raw.data.ptr, to.raw.data.ptr, state, 2048, 0, 2048, 2048, 3)
        launch = Launch(function("rows", "put_rows", KV="F16"), (2, 1), (128,), args)
        return Op("kernel", "put", lambda stream: launch(stream.ptr), (of.span(),), (to.span(),))

    zero = device.alloc("state", 32)
    spin = Launch(function("tokens", "spin", WT="F32"), (1,), (1,), ctypes.c_uint64(5_000_000))
    wait = Op("kernel", "spin", lambda stream: spin(stream.ptr))
    with device.capture(queue) as graph:
        fork = device.event("fork")
        device.record(queue, fork)
        device.wait(other, fork, "fork")
        device.submit(other, wait)
        device.copy(other, a.span(), host.span(), site="early")
        device.record(other, ready)
        device.submit(queue, wait)
        device.wait(queue, ready, "ready")
        device.submit(queue, put(b, a))
        device.submit(queue, put(a, b))
        device.copy(queue, host.span(), a.span(), site="back")
    for _ in range(3):
        a.raw[:] = 0
        b.raw[:] = 0
        device._runtime.deviceSynchronize()
        host.raw[:] = 0x37
        device.launch(graph)
        device.synchronize(queue, "test")
        assert (host.raw == 0x37).all()


def test_a_chain_of_programmatic_launches_keeps_order(device: CudaDevice) -> None:
    """b takes a, c takes b, all begun while a long kernel runs: each waits for the one before."""
    import ctypes

    from kvbench.device.cuda import arguments

    queue = device.queue("q")
    a, b, c, zero = (device.alloc(name, 4096) for name in ("a", "b", "c", "zero"))

    def put(to: Buffer, of: Buffer) -> Launch:
        args = arguments.Put(
            of.raw.data.ptr, to.raw.data.ptr, zero.raw.data.ptr, 2048, 0, 2048, 2048, 3
        )
        return Launch(function("rows", "put_rows", KV="F16"), (2, 1), (128,), args)

    spin = Launch(function("tokens", "spin", WT="F32"), (1,), (1,), ctypes.c_uint64(5_000_000))
    chain = [spin, put(b, a), put(c, b)]
    for buffer, value in ((a, 0x37), (b, 1), (c, 2), (zero, 0)):
        buffer.raw[:] = value
    device._runtime.deviceSynchronize()

    def run(stream: Any) -> None:
        for one in chain:
            one(stream.ptr)

    device.submit(queue, Op("kernel", "chain", run))
    device.synchronize(queue, "test")
    assert (c.raw.get() == 0x37).all()


def test_an_abandoned_capture_leaves_the_queue_usable(device: CudaDevice) -> None:
    parts = chain(device)
    with pytest.raises(RuntimeError, match="planted"), device.capture(parts[1]):
        raise RuntimeError("planted")
    pass_on(device, parts)
    device.synchronize(parts[1], "test")
    np.testing.assert_array_equal(parts[5].raw, parts[3].raw)


def test_two_dimensional_copies(device: CudaDevice) -> None:
    from kvbench.device.memory import Span

    queue = device.queue("q")
    host = device.alloc("host", 4096, "host")
    host.raw[:] = np.random.default_rng().integers(0, 256, 4096)
    card = device.alloc("card", 4096)
    device.copy(queue, Span(card, 16, 100, 4, 128), Span(host, 8, 100, 4, 900), site="early")
    device.synchronize(queue, "test")
    got = card.raw.get()
    for i in range(4):
        start = 16 + 128 * i
        np.testing.assert_array_equal(got[start : start + 100], host.raw[8 + 900 * i :][:100])
    assert got[116:144].sum() == 0


def test_memory_is_counted_and_given_back(device: CudaDevice) -> None:
    free = device.free_bytes()
    buffer = device.alloc("large", 1 << 30)
    assert device.free_bytes() <= free - (1 << 30)
    device.free(buffer)
    assert device.free_bytes() >= free - (8 << 20)
    with pytest.raises(OutOfDeviceMemory, match="huge needs"):
        device.alloc("huge", 1 << 50)


def test_unpinned_memory_is_ordinary(device: CudaDevice) -> None:
    queue = device.queue("q")
    host = device.alloc("host", 1 << 20, "host", pinned=False)
    host.raw[:] = 7
    card = device.alloc("card", 1 << 20)
    device.copy(queue, card.span(), host.span(), site="early")
    device.synchronize(queue, "test")
    assert (card.raw.get() == 7).all()
