"""A stated cost per real synchronize: what a driver's wait costs on some other machine.

It is a model, not a measurement, and every result that carries it says so. The host sleeps; a
sleep that ran long is credited to the next wait, so that the total is the stated one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(slots=True)
class WaitCharge:
    """``seconds`` for each synchronize that is really made; ``total_s`` slept so far."""

    seconds: float = 0.0
    total_s: float = 0.0
    _owed: float = 0.0

    def pay(self) -> None:
        """Charge one wait to the calling (host) thread."""
        if not self.seconds:
            return
        self._owed += self.seconds
        if self._owed <= 0:
            return
        start = time.perf_counter()
        time.sleep(self._owed)
        slept = time.perf_counter() - start
        self._owed -= slept
        self.total_s += slept
