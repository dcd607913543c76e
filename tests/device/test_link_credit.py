"""An ordered copy between kernels pays the link's full time: an idle link earns no credit."""

from __future__ import annotations

import ctypes
import sys
import time

import pytest

from kvbench.device.cpu.link import Link
from kvbench.device.cpu.threads import ThreadDevice
from kvbench.device.oplog import OpLog
from kvbench.device.ops import Op

NBYTES, SECONDS, COPIES = 1 << 12, 0.004, 6


def copies(*, kernels_between: bool) -> list[tuple[float, float]]:
    """Start and end of each copy, seconds."""
    log = OpLog()
    with ThreadDevice(log=log, link=Link(bandwidth=NBYTES / SECONDS)) as device:
        queue = device.queue("compute")
        source = device.alloc("source", NBYTES, "host")
        target = device.alloc("target", NBYTES)
        device.submit(queue, Op("kernel", "hold", lambda _: time.sleep(0.02)))
        for _ in range(COPIES):
            device.copy(queue, target.span(), source.span(), site="ordered")
            if kernels_between:
                device.submit(queue, Op("kernel", "compute", lambda _: time.sleep(SECONDS)))
        device.synchronize(queue, "end")
    return [(entry.start, entry.end) for entry in log.ops("ordered")]


def test_copies_between_kernels_take_the_links_time_each() -> None:
    times = copies(kernels_between=True)
    assert len(times) == COPIES
    assert min(end - start for start, end in times) >= SECONDS


def test_copies_back_to_back_take_the_links_time_together() -> None:
    """From first to last, however late the queue's thread was woken in between."""
    times = copies(kernels_between=False)
    assert times[-1][1] - times[0][0] >= (COPIES - 1) * SECONDS


@pytest.mark.skipif(sys.platform != "linux", reason="timer slack is Linux's")
def test_a_queues_sleeps_end_on_time() -> None:
    """Each worker asks the kernel for no slack: one nanosecond instead of 50,000."""
    found: list[int] = []

    def ask(_: object) -> None:
        found.append(ctypes.CDLL(None).prctl(30, 0, 0, 0, 0))  # PR_GET_TIMERSLACK

    with ThreadDevice() as device:
        queue = device.queue("compute")
        device.submit(queue, Op("kernel", "ask", ask))
        device.synchronize(queue, "end")
    assert found == [1]
