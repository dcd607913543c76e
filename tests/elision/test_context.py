"""The used mark itself: S1, S2, S3, S4, S8, and what is counted where."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.device.api import Device, Queue
from kvbench.device.context import Context
from kvbench.device.cpu.threads import ThreadDevice
from kvbench.device.hooks import Hooks
from kvbench.device.ops import Op
from kvbench.errors import DeviceError, LeaseError


def nothing(_: Any) -> None:
    return


def noop() -> Op:
    return Op("kernel", "noop", nothing)


def elided(context: Context, site: str) -> int:
    return context.sites[site].elided


def test_acquiring_marks_and_only_success_clears_s1() -> None:
    context = Context(mode="elided")
    context.synchronize("q", "idle", lambda: 1)
    assert elided(context, "idle") == 1
    with context.acquire("q"):
        pass

    def fails() -> int:
        raise DeviceError("the driver said no")

    with pytest.raises(DeviceError):
        context.synchronize("q", "failed", fails)
    assert context.used["q"], "a failed synchronize must leave the mark"
    made: list[int] = []
    context.synchronize("q", "again", lambda: made.append(1) or 1)
    assert made and not context.used["q"]
    context.synchronize("q", "over", lambda: made.append(2) or 2)
    assert made == [1] and elided(context, "over") == 1


def test_a_blas_handle_marks_the_queue_it_is_bound_to_s1() -> None:
    context, blas = Context(mode="elided"), object()
    with context.acquire("q", blas) as handle:
        assert handle is blas
    assert context.used["q"] and not context.used["other"]


def test_a_handle_is_dead_once_its_lease_has_ended_s2() -> None:
    lease = Context().acquire("q", "handle")
    with lease as handle:
        assert handle == "handle"
    with pytest.raises(LeaseError, match="'q' has ended"):
        _ = lease.handle


def test_debug_mode_finds_a_kept_handle_and_a_kept_lease_s2() -> None:
    class Stream:
        ptr = 7

    context = Context(mode="elided", debug=True)
    with context.acquire("q", Stream()) as kept:
        assert kept.ptr == 7
    with pytest.raises(LeaseError, match="has ended"):
        _ = kept.ptr
    context.synchronize("q", "fine", lambda: 1)
    open_one = context.acquire("q", Stream())
    with pytest.raises(LeaseError, match="kept across the synchronize at 'site'"):
        context.synchronize("q", "site", lambda: 1)
    context.synchronize("other", "site", lambda: 1)
    with open_one:
        pass
    context.synchronize("q", "site", lambda: 1)


def test_a_running_decoder_keeps_no_lease_s2() -> None:
    with ThreadDevice(context=Context(mode="elided", debug=True)) as device:
        queue, event = device.queue("compute"), device.event("e")
        device.submit(queue, noop())
        device.record(queue, event)
        device.wait(queue, event, "w")
        device.synchronize(event, "e")
        device.synchronize(queue, "q")
        assert not device.context.open_leases


@pytest.mark.parametrize(("native", "devices"), [(False, 1), (True, 2), (False, 2)])
def test_every_wait_is_made_where_elision_is_not_proved_s4(native: bool, devices: int) -> None:
    context = Context(mode="elided", native=native, logical_devices=devices)
    for _ in range(3):
        context.synchronize("q", "site", lambda: 1)
    assert context.waits() == {"site": (3, 0, 3)}


@pytest.mark.parametrize("native", [True, False])
def test_a_hip_build_waits_unconditionally_s4(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvbench.decoder import devices
    from kvbench.decoder.settings import parse
    from kvbench.device import cuda

    opened: list[tuple[str, Context]] = []

    def opens(index: int, name: str = "", *, context: Context, **_: Any) -> ThreadDevice:
        opened.append((name, context))
        return ThreadDevice(f"{name}{index}", context=context)

    monkeypatch.setattr(cuda, "native", lambda: native)
    monkeypatch.setattr(cuda, "open_cuda", opens)
    settings = parse({"device": "cuda", "waits": "elided"})
    (device,) = devices.open_devices(settings, log=None, hooks=Hooks(), name="draft")
    device.close()
    assert opened[0][0] == "draft"
    assert opened[0][1].may_elide is native


class Watched(ThreadDevice):
    """Fails whatever reaches a queue that is not marked used; half of the submissions fail."""

    broken = False

    def _check(self, queue: Queue) -> None:
        assert self.context.used[queue.name], "work reached a queue beside the accessor"
        if self.broken:
            raise DeviceError("failed half-way")

    def _enqueue(self, queue: Queue, *rest: Any) -> None:
        self._check(queue)
        super()._enqueue(queue, *rest)

    def _record(self, queue: Queue, *rest: Any) -> None:
        self._check(queue)
        super()._record(queue, *rest)

    def _wait(self, queue: Queue, *rest: Any) -> None:
        self._check(queue)
        super()._wait(queue, *rest)

    def _launch(self, graph: Any, entries: Any) -> None:
        self._check(graph.origin)
        super()._launch(graph, entries)


def submissions(device: Device, queue: Queue) -> dict[str, Any]:
    """Every way in which work gets onto a queue."""
    buffer = device.alloc("b", 64)
    event = device.event("e")
    device.record(queue, event)
    with device.capture(queue) as graph:
        device.submit(queue, noop())
    return {
        "kernel": lambda: device.submit(queue, noop()),
        "copy": lambda: device.copy(queue, buffer.span(0, 8), buffer.span(8, 8), site="c"),
        "record": lambda: device.record(queue, event),
        "wait": lambda: device.wait(queue, event, "w"),
        "launch": lambda: device.launch(graph),
    }


@pytest.mark.parametrize("what", ["kernel", "copy", "record", "wait", "launch"])
@pytest.mark.parametrize("broken", [False, True])
def test_every_submission_marks_before_it_is_made_s3_s8(what: str, broken: bool) -> None:
    with Watched(context=Context(mode="elided")) as device:
        queue = device.queue("compute")
        submit = submissions(device, queue)[what]
        device.synchronize(queue, "before")
        assert not device.context.used[queue.name]
        device.broken = broken
        if broken:
            with pytest.raises(DeviceError, match="half-way"):
                submit()
        else:
            submit()
        device.broken = False
        assert device.context.used[queue.name], "pending even when the submission failed"
        device.synchronize(queue, "after")
        device.synchronize(queue, "after")
        counts = device.context.sites["after"]
        assert (counts.made, counts.elided) == (1, 1)


def test_a_failed_operation_leaves_the_mark_s1() -> None:
    def fails(_: Any) -> None:
        raise ValueError("bad kernel")

    device = ThreadDevice(context=Context(mode="elided"))
    queue = device.queue("compute")
    device.submit(queue, Op("kernel", "bad", fails))
    for _ in range(2):
        with pytest.raises(DeviceError, match="bad kernel"):
            device.synchronize(queue, "site")
    assert device.context.sites["site"].made == 2
    device.close()


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("use"), st.sampled_from("ab")),
            st.tuples(st.just("sync"), st.sampled_from("ab")),
            st.tuples(st.just("fail"), st.sampled_from("ab")),
        ),
        max_size=40,
    )
)
def test_elided_are_exactly_the_waits_with_nothing_since_s1(program: list[tuple[str, str]]) -> None:
    """Against the plainest model: work outstanding per queue since the last good wait."""
    stock, context = Context(mode="stock"), Context(mode="elided")
    outstanding = {"a": False, "b": False}
    expected = 0

    def good() -> int:
        return 1

    def bad() -> int:
        raise DeviceError("no")

    for action, queue in program:
        if action == "use":
            outstanding[queue] = True
            for c in (stock, context):
                with c.acquire(queue):
                    pass
            continue
        wait = good if action == "sync" else bad
        expected += not outstanding[queue]
        for c in (stock, context):
            made_up = action == "fail" and (outstanding[queue] or c is stock)
            if made_up:
                with pytest.raises(DeviceError):
                    c.synchronize(queue, "site", wait)
            else:
                c.synchronize(queue, "site", wait)
        if action == "sync":
            outstanding[queue] = False
    assert context.sites["site"].elided == expected
    assert stock.sites["site"].redundant == expected
    assert context.sites["site"].redundant == stock.sites["site"].elided == 0


def test_only_quiet_skips_records_that_the_host_is_behind() -> None:
    for mode, expected in (("stock", (3, 0, 2)), ("elided", (3, 0, 2)), ("quiet", (1, 2, 0))):
        with ThreadDevice(context=Context(mode=mode)) as device:  # type: ignore[arg-type]
            queue = device.queue("compute")
            early, late = device.event("early"), device.event("late")
            device.record(queue, early)
            device.record(queue, late)
            device.synchronize(late, "site")
            device.synchronize(early, "site")  # an earlier record of the same queue
            device.synchronize(late, "site")
            assert device.context.waits() == {"site": expected}
            device.record(queue, early)
            device.synchronize(early, "new")
            assert device.context.sites["new"].made == 1


def test_a_queue_wait_covers_its_records_and_no_other_queues() -> None:
    with ThreadDevice(context=Context(mode="quiet")) as device:
        one, other = device.queue("one"), device.queue("other")
        here, there = device.event("here"), device.event("there")
        device.record(one, here)
        device.record(other, there)
        device.synchronize(one, "queue")
        device.synchronize(here, "here")
        device.synchronize(there, "there")
        assert device.context.waits() == {
            "here": (0, 1, 0),
            "queue": (1, 0, 0),
            "there": (1, 0, 0),
        }


def test_an_event_never_recorded_is_waited_for_in_every_mode_h21() -> None:
    with ThreadDevice(context=Context(mode="quiet")) as device:
        device.synchronize(device.event("never"), "site")
        assert device.context.sites["site"].made == 1
