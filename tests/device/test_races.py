"""The happens-before check and the executors: what is ordered, what is not, and what that means."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kvbench.device.api import Capabilities, Device, Queue
from kvbench.device.context import Context
from kvbench.device.cpu.explorer import ExplorerDevice, Picker, Schedule
from kvbench.device.cpu.link import Link
from kvbench.device.cpu.threads import ThreadDevice
from kvbench.device.memory import Buffer, Span
from kvbench.device.oplog import OpLog
from kvbench.device.ops import Op
from kvbench.device.races import check
from kvbench.errors import DeviceError, OutOfDeviceMemory


def _device(log: OpLog, kind: str = "explore") -> Device:
    if kind == "threads":
        return ThreadDevice("d", log=log)
    return ExplorerDevice("d", log=log, schedule=Schedule(Picker(1)))


def _setup(device: Device) -> tuple[Queue, Queue, Buffer, Buffer]:
    host, memory = device.alloc("host", 256, "host"), device.alloc("memory", 256)
    return device.queue("a"), device.queue("b"), host, memory


def _kernel(queue: Queue, *, reads: tuple[Span, ...] = (), writes: tuple[Span, ...] = ()) -> None:
    queue.device.submit(queue, Op("kernel", "k", lambda _: None, reads, writes, site="k"))


@pytest.mark.parametrize("kind", ["threads", "explore"])
def test_a_wait_orders_and_its_absence_is_reported(kind: str) -> None:
    """T7: two queues meet in the same bytes; only the event makes that right."""
    for waits in (True, False):
        log = OpLog()
        with _device(log, kind) as device:
            a, b, host, memory = _setup(device)
            event = device.event("e")
            device.copy(a, memory.span(), host.span(), site="early")
            device.record(a, event)
            if waits:
                device.wait(b, event, "ready")
            _kernel(b, reads=(memory.span(0, 16),))
        races = check(log)
        assert bool(races) is not waits
        if races:
            text = races[0].describe()
            assert "read after write" in text and "d/memory[0:16]" in text
            assert "d/b must wait for a record made on d/a" in text


def test_disjoint_runs_of_a_2d_copy_do_not_conflict() -> None:
    """T9: the gaps between the runs of a 2D copy are not touched."""
    log = OpLog()
    with _device(log) as device:
        a, b, host, memory = _setup(device)
        device.copy(a, Span(memory, 0, 16, 4, 64), Span(host, 0, 16, 4, 64), site="early")
        _kernel(b, writes=(Span(memory, 16, 48, 3, 64),))
        assert not check(log)
        _kernel(b, writes=(memory.span(128, 8),))
        assert [r.hazard for r in check(log)] == ["write after write"]


def test_host_accesses_and_synchronize() -> None:
    """H3: the host rewrites what a queued copy reads, before and after waiting for it."""
    log = OpLog()
    with _device(log) as device:
        a, _, host, memory = _setup(device)
        device.copy(a, memory.span(), host.span(), site="early")
        device.host("clear", lambda: None, writes=(host.span(),))
        assert [r.hazard for r in check(log)] == ["write after read"]
        device.synchronize(a, "clear")
        device.host("clear", lambda: None, writes=(host.span(),))
        assert len(check(log)) == 1


def test_freeing_in_flight_and_using_after() -> None:
    """T7, H16: freeing is an access, and memory has an end."""
    log = OpLog()
    device = _device(log)
    a, _, host, memory = _setup(device)
    device.copy(a, memory.span(), host.span(), site="early")
    device.free(memory)
    hazards = {r.hazard for r in check(log)}
    assert hazards == {"write after write"}
    log.entries.append(log.entries[-2])  # the copy once more, after the free
    assert "use after free" in {r.hazard for r in check(log)}


def test_a_wait_binds_the_latest_record_at_the_call() -> None:
    """H21: a later record does not move an earlier wait; no record at all is a no-op, reported."""
    log = OpLog()
    with _device(log) as device:
        a, b, host, memory = _setup(device)
        event = device.event("e")
        device.wait(b, event, "ready")
        device.copy(a, memory.span(), host.span(), site="early")
        device.record(a, event)
        _kernel(b, reads=(memory.span(),))
    assert [r.hazard for r in check(log)] == ["never recorded", "read after write"]


def test_a_launch_is_not_behind_other_queues() -> None:
    """H15: a graph's branch is ordered by its origin alone, not by the queue it was captured on."""
    log = OpLog()
    with _device(log) as device:
        a, b, host, memory = _setup(device)
        fork, join = device.event("fork"), device.event("join")
        with device.capture(a) as graph:
            device.record(a, fork)
            device.wait(b, fork, "fork")
            _kernel(b, writes=(memory.span(),))
            device.record(b, join)
            device.wait(a, join, "rejoin")
        device.copy(b, memory.span(), host.span(), site="early")
        device.launch(graph)
        assert [r.hazard for r in check(log)] == ["write after write"]


def test_a_forked_queue_must_rejoin() -> None:
    """A capture that leaves a branch open is refused, and capturing works again afterwards."""
    with _device(OpLog()) as device:
        a, b, _, memory = _setup(device)
        fork = device.event("fork")
        with pytest.raises(DeviceError, match="not rejoined"), device.capture(a):
            device.record(a, fork)
            device.wait(b, fork, "fork")
            _kernel(b, writes=(memory.span(),))
        with device.capture(a) as graph:
            _kernel(a, writes=(memory.span(),))
        device.launch(graph)


def test_events_do_not_cross_the_edge_of_a_capture() -> None:
    """H15: CUDA allows neither direction."""
    with _device(OpLog()) as device:
        a, b, _, memory = _setup(device)
        outside, inside = device.event("outside"), device.event("inside")
        device.record(b, outside)
        with pytest.raises(DeviceError, match="outside this capture"), device.capture(a):
            device.wait(a, outside, "ready")
        with device.capture(a):
            _kernel(a, writes=(memory.span(),))
            device.record(a, inside)
        with pytest.raises(DeviceError, match="inside a capture"):
            device.wait(b, inside, "ready")


def test_memory_is_bounded_and_poisoned() -> None:
    """T14, T17a: an allocation that does not fit says so; uncleared memory holds NaN."""
    device = ThreadDevice("d", capacity=1024, poison=True)
    with device:
        with pytest.raises(OutOfDeviceMemory, match=r"needs 2048 bytes.*1024 are free"):
            device.alloc("large", 2048)
        fresh = device.alloc("fresh", 64, clear=False)
        assert np.isnan(fresh.raw.view(np.float16)).all()
        assert not device.alloc("cleared", 64).raw.any()
        device.free(fresh)
        with pytest.raises(DeviceError, match="freed twice"):
            device.free(fresh)


def test_an_error_in_an_operation_reaches_the_host() -> None:
    """Nothing hangs: later work is skipped, the next synchronize raises in one line."""

    def fail(_: object) -> None:
        raise ValueError("no such row")

    with ThreadDevice("d") as device:
        queue = device.queue("a")
        device.submit(queue, Op("kernel", "k", fail))
        with pytest.raises(DeviceError, match="no such row"):
            device.synchronize(queue, "end")


def test_the_link_is_as_slow_as_it_says() -> None:
    """A slowed link never delivers early; how late it is depends on the machine."""
    with ThreadDevice("d", link=Link(bandwidth=1e6)) as device:
        queue = device.queue("a")
        host, memory = device.alloc("host", 4096, "host"), device.alloc("memory", 4096)
        begin = time.perf_counter()
        for _ in range(5):
            device.copy(queue, memory.span(), host.span(), site="early")
        device.synchronize(queue, "end")
        assert time.perf_counter() - begin >= 5 * 4096 / 1e6 * 0.999


def test_the_explorer_repeats_itself() -> None:
    """The same seed makes the same choices; another seed another order, sooner or later."""

    def order(seed: int) -> list[str]:
        picker = Picker(seed)
        with ExplorerDevice("d", schedule=Schedule(picker)) as device:
            a, b, _, _ = _setup(device)
            for _ in range(8):
                _kernel(a)
                _kernel(b)
            device.synchronize(a, "end")
            device.synchronize(b, "end")
        return picker.chosen

    assert order(3) == order(3)
    assert len({tuple(order(seed)) for seed in range(20)}) > 5


def test_a_deadlock_is_an_error_not_a_hang() -> None:
    """A wait for a record that is queued behind it cannot be satisfied in any order."""
    schedule = Schedule(Picker(1))
    with ExplorerDevice("d", schedule=schedule) as device:
        a = device.queue("a")
        event = device.event("e")
        record = device.record(a, event)
        schedule.items[a.name].clear()
        schedule.done.discard(record.id)
        device.wait(a, event, "ready")
        with pytest.raises(DeviceError, match="deadlock"):
            device.synchronize(a, "end")
        schedule.items[a.name].clear()


def test_capabilities_are_declared() -> None:
    """T16: the cpu device declares all that the transport asks for."""
    assert ThreadDevice("d").capabilities == Capabilities()
    assert Context().waits() == {}
