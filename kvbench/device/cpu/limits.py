"""The cpu device's limits: its link as it is slowed, and what one thread reads of memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from kvbench.device.cpu.link import Link
from kvbench.device.cpu.memory import aligned
from kvbench.device.limits import Limits

ROUNDS = 3
LINK_SECONDS = 0.02
"""Of a slowed link, one round."""
LINK_BYTES = 8 << 20
"""At most, one round."""
MEMORY_BYTES = 128 << 20
"""Beyond most caches; one thread reads it, as one thread runs a queue."""


def measure(link: Link) -> Limits:
    """Medians of ``ROUNDS``; about 0.2 s."""
    most = LINK_BYTES if link.bandwidth is None else int(link.bandwidth * LINK_SECONDS)
    size = min(LINK_BYTES, max(1 << 12, most))
    to, of = np.zeros(size, np.uint8), np.ones(size, np.uint8)
    large = aligned(MEMORY_BYTES).view(np.float32)
    large[:] = 1.0

    def transfer() -> None:
        link.transfer(lambda: np.copyto(to, of), size, queued=False)

    return Limits(size / _seconds(transfer), MEMORY_BYTES / _seconds(large.max))


def _seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times)
