"""Issue: the virtual device keeps time by a cost model and executes nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.device.api import Queue
from kvbench.device.oplog import OpLog
from kvbench.device.ops import Op
from kvbench.device.races import check
from kvbench.device.virtual import SECONDS, Costs, VirtualDevice, _Engine
from kvbench.errors import SettingError


def kernel(seconds: float) -> Op:
    def never(_: object) -> None:
        raise AssertionError("the virtual device must execute nothing")

    return Op("kernel", "k", never, tags={SECONDS: seconds})


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=12))
def test_an_engine_does_one_copy_at_a_time_and_none_before_it_is_ready(
    requests: list[tuple[int, int]],
) -> None:
    engine, taken = _Engine(), []
    for ready, seconds in requests:
        start = engine.take(float(ready), float(seconds))
        assert start >= ready
        taken.append((start, start + seconds))
    taken.sort()
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(taken))


def test_queues_overlap_and_events_order_them() -> None:
    log = OpLog()
    with VirtualDevice(Costs(link=100.0), log=log) as device:
        compute, transfer = device.queue("compute"), device.queue("transfer")
        host, ring, ready = (
            device.alloc("h", 200, "host"),
            device.alloc("r", 200),
            device.event("e"),
        )
        device.copy(transfer, ring.span(), host.span(), site="early")
        device.record(transfer, ready)
        device.submit(compute, kernel(1.5))
        device.wait(compute, ready, "ready")
        device.submit(compute, kernel(1.0))
        device.synchronize(compute, "end")
        assert device.now == 3.0
    assert [(e.start, e.end) for e in log.ops()] == [(0.0, 2.0), (0.0, 1.5), (2.0, 3.0)]
    assert check(log) == []


def test_copies_share_the_link_in_each_direction() -> None:
    with VirtualDevice(Costs(link=100.0, store=50.0, link_latency=0.25)) as device:
        queues = [device.queue(name) for name in ("a", "b", "c")]
        host, card = device.alloc("h", 100, "host"), device.alloc("d", 100)
        device.copy(queues[0], card.span(), host.span(), site="early")
        device.copy(queues[1], card.span(), host.span(), site="early")
        device.copy(queues[2], host.span(), card.span(), site="store")
        ends = [queue.native[0] for queue in queues]
    assert ends == [1.25, 2.5, 2.25]


def test_calls_and_waits_cost_the_host_and_delay_what_follows() -> None:
    with VirtualDevice(Costs(link=1.0, issue=0.5, wait=2.0)) as device:
        queue = device.queue("compute")
        device.submit(queue, kernel(1.0))
        device.submit(queue, kernel(1.0))
        device.synchronize(queue, "end")
        assert device.now == 2.5 + 2.0
        device.submit(queue, kernel(1.0))
        assert queue.native[0] == 6.0


def fork_and_join(device: VirtualDevice, queue: Queue, other: Queue) -> None:
    forked, back = device.event("forked"), device.event("back")
    device.submit(queue, kernel(0.1))
    device.record(queue, forked)
    device.wait(other, forked, "fork")
    device.submit(other, kernel(0.1))
    device.record(other, back)
    device.wait(queue, back, "join")


def test_a_launched_graph_costs_one_call() -> None:
    ends = []
    for graphs in (False, True):
        with VirtualDevice(Costs(link=1.0, issue=1.0)) as device:
            queue, other = device.queue("a"), device.queue("b")
            if graphs:
                with device.capture(queue) as graph:
                    fork_and_join(device, queue, other)
                device.launch(graph)
            else:
                fork_and_join(device, queue, other)
            ends.append(queue.native[0])
    assert ends[1] == pytest.approx(1.2)
    assert ends[0] > 4


def test_impossible_costs_are_refused() -> None:
    for wrong in ({"link": 0.0}, {"link": 1.0, "wait": -1.0}, {"link": float("nan")}):
        with pytest.raises(SettingError):
            Costs(**wrong)
