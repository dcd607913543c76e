"""The counts of redundant waits are proved from the op log, without the context's help (S6)."""

from __future__ import annotations

from typing import Any

import pytest

from kvbench.device.api import Device
from kvbench.device.context import Context
from kvbench.device.cpu.threads import ThreadDevice
from kvbench.device.needless import needless
from kvbench.device.oplog import OpLog
from kvbench.records.capture import END, TOKEN
from tests.elision.runs import decode


@pytest.mark.parametrize("waits", ["stock", "elided", "quiet"])
@pytest.mark.parametrize("draft", ["none", "layers:2", "prompt"])
@pytest.mark.parametrize("extra", [{}, {"depth": 1}, {"graphs": True}, {"unified": True}])
def test_redundant_is_what_nobody_needed(waits: str, draft: str, extra: dict[str, Any]) -> None:
    done = decode(1, waits=waits, draft=draft, row_multiple=128, **extra)
    assert done.log is not None
    found = needless(done.log.entries, after=TOKEN, until=END)
    counted: dict[str, int] = {}
    for site, (_, _, redundant) in done.result.waits.items():
        name = site.removeprefix("draft.")
        counted[name] = counted.get(name, 0) + redundant
    if waits != "quiet":  # nothing is uploaded after the last token, so its input is not rewritten
        for site in ("upload.places", "upload.cells")[: 2 if "unified" in extra else 1]:
            counted[site] += 2 if draft.startswith("layers") else 1
    assert found == {site: n for site, n in counted.items() if n}
    if waits == "quiet":
        assert not found
    if waits == "elided":
        assert set(found) - {"upload.places", "upload.cells"} == {"graph.done"}


def copies(device: Device) -> tuple[Any, Any, Any]:
    queue = device.queue("q")
    return queue, device.alloc("near", 64), device.alloc("far", 64, "host")


def test_the_first_wait_that_orders_is_the_needed_one() -> None:
    log = OpLog()
    with ThreadDevice(log=log, context=Context()) as device:
        queue, near, far = copies(device)
        device.copy(queue, far.span(), near.span(), site="read")
        device.synchronize(queue, "first")
        device.synchronize(queue, "second")
        device.host("read", lambda: None, reads=(far.span(),))
        device.copy(queue, near.span(0, 8), far.span(0, 8), site="up")
        device.synchronize(queue, "unused")
    assert needless(log.entries) == {"second": 1, "unused": 1}


def test_a_wait_that_only_another_queue_needs_is_needed() -> None:
    log = OpLog()
    with ThreadDevice(log=log, context=Context()) as device:
        queue, near, far = copies(device)
        other = device.queue("other")
        device.copy(queue, far.span(), near.span(), site="read")
        device.synchronize(queue, "through the host")
        device.copy(other, near.span(), far.span(), site="up")
    assert needless(log.entries) == {}


def test_an_edge_between_queues_makes_the_wait_needless() -> None:
    log = OpLog()
    with ThreadDevice(log=log, context=Context()) as device:
        queue, near, far = copies(device)
        other, event = device.queue("other"), device.event("e")
        device.copy(queue, far.span(), near.span(), site="read")
        device.record(queue, event)
        device.wait(other, event, "edge")
        device.synchronize(queue, "not needed")
        device.copy(other, near.span(), far.span(), site="up")
    assert needless(log.entries) == {"not needed": 1}
