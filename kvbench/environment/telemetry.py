"""What the machine did during one run, and which of it breaks a comparison.

Counters of the kernel are read before and after; what has no counter (clocks, temperatures, GPUs)
is sampled by a thread that sleeps between readings.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from kvbench.environment import gpu, system
from kvbench.spec import Limits

PERIOD_S = 0.25
MAX_GPU_OTHER_PERCENT = 5.0
"""Mean use of a GPU by a process that was there before the arm, beyond which a run is void."""


@dataclass(frozen=True)
class Sample:
    """Readings of one run: numbers by name (docs/FORMAT.md), and GPU throttle reasons seen."""

    values: dict[str, float]
    throttles: tuple[str, ...] = ()


@dataclass
class _Series:
    total: float = 0.0
    count: int = 0
    low: float = float("inf")
    high: float = float("-inf")

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1
        self.low, self.high = min(self.low, value), max(self.high, value)


@dataclass
class _Counters:
    """Kernel counters at one moment; CPU times in seconds."""

    at: float
    busy: float | None
    total: float | None
    steal: float | None
    throttles: int | None
    own: float
    children: resource.struct_rusage
    stalled_us: int | None

    @classmethod
    def now(cls) -> _Counters:
        times = _cpu_times()
        return cls(
            at=time.monotonic(),
            busy=times and times[0],
            total=times and times[1],
            steal=times and times[2],
            throttles=_cpu_throttles(),
            own=time.process_time(),
            children=resource.getrusage(resource.RUSAGE_CHILDREN),
            stalled_us=_stalled(),
        )


@dataclass
class Sampler:
    """Context manager around one run; ``sample`` holds the readings afterwards."""

    period_s: float = PERIOD_S
    sample: Sample = Sample({})
    _series: dict[str, _Series] = field(default_factory=dict)
    _throttles: set[str] = field(default_factory=set)

    def __enter__(self) -> Self:
        self._stop = threading.Event()
        self._before = _Counters.now()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        after = _Counters.now()
        self._thread.join()
        values = _between(self._before, after)
        for name, series in self._series.items():
            values[name] = series.total / series.count
            if name.endswith(("_mhz", "_temp_c")):
                values[f"{name}_min"], values[f"{name}_max"] = series.low, series.high
        self.sample = Sample(
            {name: round(value, 4) for name, value in sorted(values.items())},
            tuple(sorted(self._throttles)),
        )

    def _watch(self) -> None:
        with ExitStack() as stack:
            module = stack.enter_context(gpu.nvml())
            gpus = None if module is None else gpu.GpuSampler(module)
            # Whoever computes now is not the arm, which has hardly been started.
            others = [] if gpus is None else gpus.processes()
            while True:
                self._read(gpus, others)
                if self._stop.wait(self.period_s):
                    return

    def _read(self, gpus: gpu.GpuSampler | None, others: list[set[int]]) -> None:
        for name, value in (("cpu_mhz", _cpu_mhz()), ("cpu_temp_c", _cpu_temperature())):
            if value is not None:
                self._series.setdefault(name, _Series()).add(value)
        if gpus is None:
            return
        for number, row in enumerate(gpus.read()):
            for name, value in row.items():
                self._series.setdefault(f"gpu{number}_{name}", _Series()).add(value)
        for number, share in enumerate(gpus.busy(others) if any(others) else ()):
            self._series.setdefault(f"gpu{number}_other_percent", _Series()).add(share)
        for number, reasons in enumerate(gpus.throttles()):
            self._throttles |= {f"GPU {number}: {reason}" for reason in reasons}


def _between(before: _Counters, after: _Counters) -> dict[str, float]:
    wall = max(after.at - before.at, 1e-9)
    one, two = before.children, after.children
    arm = two.ru_utime + two.ru_stime - one.ru_utime - one.ru_stime
    own = after.own - before.own
    values: dict[str, float] = {
        "wall_s": wall,
        "arm_cpu_s": arm,
        "harness_cpu_s": own,
        "minor_faults": two.ru_minflt - one.ru_minflt,
        "major_faults": two.ru_majflt - one.ru_majflt,
        "switches_voluntary": two.ru_nvcsw - one.ru_nvcsw,
        "switches_forced": two.ru_nivcsw - one.ru_nivcsw,
    }
    if before.busy is not None and after.busy is not None:
        values["other_cores"] = max(0.0, (after.busy - before.busy - arm - own) / wall)
    if before.total is not None and after.total is not None and after.total > before.total:
        assert before.steal is not None and after.steal is not None
        values["steal"] = (after.steal - before.steal) / (after.total - before.total)
    if before.throttles is not None and after.throttles is not None:
        values["cpu_throttles"] = after.throttles - before.throttles
    if before.stalled_us is not None and after.stalled_us is not None:
        values["cpu_stalled"] = (after.stalled_us - before.stalled_us) / 1e6 / wall
    return values


def allowed_other_cores(limits: Limits) -> float:
    """The bound on other processes' load, in cores."""
    if limits.other_cores is not None:
        return limits.other_cores
    return max(0.5, 0.1 * (os.cpu_count() or 1))


def violations(sample: Sample, limits: Limits) -> tuple[str, ...]:
    """Reasons for which a run with these readings breaks the comparison, one line each."""
    values, found = sample.values, []
    allowed = allowed_other_cores(limits)
    if values.get("other_cores", 0) > allowed:
        found.append(
            f"other processes used {values['other_cores']:.2f} cores (allowed {allowed:.2f}; "
            "kvbench doctor names them, --other-cores allows more)"
        )
    if values.get("steal", 0) > limits.steal:
        found.append(
            f"the hypervisor took {100 * values['steal']:.1f}% of the CPU time "
            f"(allowed {100 * limits.steal:.1f}%)"
        )
    if values.get("cpu_throttles", 0) > 0:
        found.append(f"the CPU throttled {values['cpu_throttles']:.0f} times (heat or power)")
    for name, share in values.items():
        if name.endswith("_other_percent") and share > MAX_GPU_OTHER_PERCENT:
            found.append(f"another process used {share:.0f}% of {name.partition('_')[0]}")
    found.extend(f"throttled by {reason}" for reason in sample.throttles)
    return tuple(found)


def _cpu_times() -> tuple[float, float, float] | None:
    """(busy, total, stolen) seconds over all CPUs since boot."""
    text = system.read("/proc/stat")
    if text is None:
        return None
    ticks = [int(word) for word in text.partition("\n")[0].split()[1:9]]
    hertz = os.sysconf("SC_CLK_TCK")
    user, nice, kernel, idle, iowait, irq, softirq, steal = (t / hertz for t in ticks)
    busy = user + nice + kernel + irq + softirq
    return busy, busy + idle + iowait + steal, steal


def _cpu_throttles() -> int | None:
    counts = [
        system.read_int(f"/sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count")
        for cpu in range(os.cpu_count() or 1)
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _stalled() -> int | None:
    """Microseconds since boot in which some task waited for a CPU (pressure stall information)."""
    text = system.read("/proc/pressure/cpu")
    if text is None or "total=" not in text:
        return None
    return int(text.partition("\n")[0].rpartition("total=")[2])


def _cpu_mhz() -> float | None:
    speeds = []
    for cpu in range(os.cpu_count() or 1):
        khz = system.read_int(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq")
        if khz is not None:
            speeds.append(khz / 1000)
    return sum(speeds) / len(speeds) if speeds else None


def _cpu_temperature() -> float | None:
    hottest = None
    for zone in range(32):
        base = f"/sys/class/thermal/thermal_zone{zone}"
        milli = system.read_int(f"{base}/temp")
        if milli is None:
            break
        if "pkg" in (system.read(f"{base}/type") or ""):
            hottest = max(hottest or 0.0, milli / 1000)
    return hottest
