"""Which edges the transport asks for, and which of them reach the device."""

from __future__ import annotations

from typing import Any

import pytest

from gates.transport.harness import IssueOrder, reference
from gates.transport.harness import run as run_scenario
from gates.transport.scenarios import BY_NAME
from kvbench.device.api import Device
from kvbench.device.cpu.explorer import ExplorerDevice, Picker, Schedule
from kvbench.device.oplog import OpLog
from kvbench.device.races import check
from kvbench.transport.order import Order


@pytest.mark.parametrize("name", ["declined", "declined_graphs"])
@pytest.mark.parametrize(
    "path", [{}, {"tail": "host"}, {"boundary": "wait"}, {"boundary": "wait", "tail": "host"}]
)
def test_a_delivery_is_behind_the_rows_a_declined_graph_stored(
    name: str, path: dict[str, Any]
) -> None:
    """T4: the graph before counts whether or not it delivered; T13: the decline is recovered."""
    scenario = BY_NAME[name]
    out = run_scenario(scenario, picker=IssueOrder(0), **path)
    (telemetry,) = out.telemetry
    assert telemetry.declines["budget"] and telemetry.staged_graphs
    assert (out.error, out.digest) == ("", reference(scenario).digest)
    assert check(out.log) == []


@pytest.fixture
def device() -> Device:
    """With a log."""
    return ExplorerDevice("cpu0", schedule=Schedule(Picker(0)), log=OpLog())


def _waits(device: Device) -> list[str]:
    assert device.log is not None
    return [e.site for e in device.log.entries if e.kind == "wait"]


def test_the_latest_of_several_marks_implies_the_others(device: Device) -> None:
    """T7: a delivery asks for release and for store; where the store came later it is enough."""
    order = Order(device)
    compute, transfer = device.queue("compute"), device.queue("transfer")
    release = order.mark(compute, device.event("release"))
    stored = order.mark(compute, device.event("stored"))
    order.after_all(transfer, {"release": release, "store": stored})
    assert _waits(device) == ["store"]
    assert order.implied == {"release": 1}


def test_what_the_host_waited_for_is_behind_all_that_is_issued_later(device: Device) -> None:
    """T6: with the host-blocking loop no queue waits for a store again."""
    order = Order(device)
    compute, transfer = device.queue("compute"), device.queue("transfer")
    mark = order.mark(compute, device.event("stored"))
    device.synchronize(compute, "store")
    order.host_waited(compute)
    order.after(transfer, mark, "tail")
    assert _waits(device) == []


def test_a_branch_forgets_what_it_learned_in_a_capture(device: Device) -> None:
    """H15: edges inside a graph say nothing about the queue outside it."""
    order = Order(device)
    compute, transfer = device.queue("compute"), device.queue("transfer")
    mark, outside = order.fork(compute, transfer, device.event("fork"))
    order.after(transfer, mark, "boundary")
    assert _waits(device) == ["fork"]
    order.restore(transfer, outside)
    order.after(transfer, mark, "launch")
    assert _waits(device) == ["fork", "launch"]
