"""A link slowed to a stated bandwidth: first in, first out, shared by all queues of a device.

Real memory copies are far faster than the links this stands for, so a transfer does its copy and
then sleeps to the end of the time it would have taken. A sleep that ran long is made up for by
the next transfer if that one was already waiting; an idle link earns no credit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

CREDIT = 0.010
"""Seconds after the link's nominal end within which the next transfer counts as back to back."""


@dataclass(slots=True)
class Link:
    """Host-to-device link of ``bandwidth`` bytes/s (None: memory speed) plus ``latency`` s."""

    bandwidth: float | None = None
    latency: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _free_at: float = 0.0

    def transfer(self, copy: Callable[[], None], nbytes: int, *, queued: bool) -> None:
        """Run ``copy`` and occupy the link for as long as ``nbytes`` take.

        ``queued`` says that the transfer was waiting for its turn rather than newly issued.
        """
        if self.bandwidth is None:
            copy()
            return
        with self._lock:
            now = time.perf_counter()
            late = now - self._free_at
            start = self._free_at if queued and 0.0 <= late < CREDIT else now
            copy()
            self._free_at = start + self.latency + nbytes / self.bandwidth
            pause = self._free_at - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
