"""How noisy this machine is right now, measured in seconds rather than guessed."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kvbench.environment import system

PIECE_S = 0.01
PIECES = 60


class Scatter(NamedTuple):
    """A fixed piece of work, repeated: how its time scatters (robust, relative), and the worst."""

    relative: float
    worst: float


def scatter(cpus: Sequence[int] | None = None, pieces: int = PIECES) -> Scatter:
    """Time ``pieces`` equal pieces of arithmetic, on ``cpus`` or wherever the kernel likes.

    ``relative``: median absolute deviation x 1.48 over the median. ``worst``: maximum over median.
    """
    before = os.sched_getaffinity(0) if cpus is not None else None
    if cpus is not None:
        os.sched_setaffinity(0, cpus)
    try:
        size = _calibrated()
        times = [_piece(size) for _ in range(pieces)]
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)
    middle = statistics.median(times)
    away = statistics.median(abs(t - middle) for t in times)
    return Scatter(1.4826 * away / middle, max(times) / middle)


def _calibrated() -> int:
    size = 1000
    while (spent := _piece(size)) < PIECE_S / 2:
        size = int(size * min(8.0, max(1.5, PIECE_S / max(spent, 1e-9))))
    return size


def _piece(size: int) -> float:
    started = time.perf_counter()
    total = 0
    for number in range(size):
        total += number * number
    return time.perf_counter() - started


class Load(NamedTuple):
    """Who used the CPU in an interval: cores' worth by others, share stolen, the busiest."""

    other_cores: float
    steal: float
    busiest: list[tuple[str, float]]
    """(process name, cores), at most three, above 5% of a core."""


def load(seconds: float = 1.0) -> Load:
    """Watch the machine for ``seconds`` without working."""
    import psutil

    from kvbench.environment.telemetry import Sampler

    before = _cpu_by_process(psutil)
    with Sampler() as sampler:
        time.sleep(seconds)
    after = _cpu_by_process(psutil)
    own = os.getpid()
    used = [
        (name, (spent - before[pid][1]) / seconds)
        for pid, (name, spent) in after.items()
        if pid in before and pid != own
    ]
    busiest = sorted((u for u in used if u[1] > 0.05), key=lambda u: -u[1])[:3]
    values = sampler.sample.values
    return Load(values.get("other_cores", 0.0), values.get("steal", 0.0), busiest)


def _cpu_by_process(psutil: object) -> dict[int, tuple[str, float]]:
    found = {}
    for process in psutil.process_iter(["name", "cpu_times"]):  # type: ignore[attr-defined]
        times = process.info["cpu_times"]
        if times is not None:
            found[process.pid] = (str(process.info["name"]), times.user + times.system)
    return found


def flush_seconds(directory: Path, times: int = 9) -> float:
    """Median time to append a journal line's worth of bytes to a file and flush it to disk."""
    spent = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(times):
            started = time.perf_counter()
            file.write(b"x" * 2048)
            file.flush()
            os.fsync(file.fileno())
            spent.append(time.perf_counter() - started)
    return statistics.median(spent)


def memory_mib() -> tuple[int | None, int | None]:
    """(available, swap in use), MiB."""
    text = system.read("/proc/meminfo")

    def mib(name: str) -> int | None:
        value = system.field(text, name)
        return int(value.split()[0]) >> 10 if value else None

    total, free = mib("SwapTotal"), mib("SwapFree")
    used = total - free if total is not None and free is not None else None
    return mib("MemAvailable"), used
