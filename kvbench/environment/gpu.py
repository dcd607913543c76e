"""NVIDIA GPUs through NVML (extra ``cuda``); a machine without them has an empty list."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

THROTTLE_REASONS = {
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSwThermalSlowdown": "heat (software)",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "heat (hardware)",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
}
"""NVML's constants whose bit means that the GPU is held back from outside the arm."""


@contextmanager
def nvml() -> Iterator[Any]:
    """The initialised ``pynvml`` module, or None where there is no NVML or no driver."""
    if importlib.util.find_spec("pynvml") is None:
        yield None
        return
    module = importlib.import_module("pynvml")
    try:
        module.nvmlInit()
    except module.NVMLError:
        yield None
        return
    try:
        yield module
    finally:
        module.nvmlShutdown()


def handles(module: Any) -> list[Any]:
    """Every GPU that NVML sees."""
    return [module.nvmlDeviceGetHandleByIndex(i) for i in range(module.nvmlDeviceGetCount())]


def ask(module: Any, function: str, *arguments: Any) -> Any:
    """The value of one NVML query, None where this GPU or driver does not support it."""
    query: Callable[..., Any] | None = getattr(module, function, None)
    if query is None:
        return None
    try:
        return query(*arguments)
    except module.NVMLError:
        return None


def describe() -> list[dict[str, Any]]:
    """What must match between two records, and what doctor looks at."""
    with nvml() as module:
        if module is None:
            return []
        return [_describe(module, handle) for handle in handles(module)]


def _describe(m: Any, handle: Any) -> dict[str, Any]:
    memory = ask(m, "nvmlDeviceGetMemoryInfo", handle)
    limit = ask(m, "nvmlDeviceGetPowerManagementLimit", handle)
    default = ask(m, "nvmlDeviceGetPowerManagementDefaultLimit", handle)
    mig = ask(m, "nvmlDeviceGetMigMode", handle)
    return {
        "name": _text(ask(m, "nvmlDeviceGetName", handle)),
        "driver": _text(ask(m, "nvmlSystemGetDriverVersion")),
        "cuda": ask(m, "nvmlSystemGetCudaDriverVersion"),
        "memory_mib": memory.total >> 20 if memory else None,
        "pcie_generation_max": ask(m, "nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width": ask(m, "nvmlDeviceGetCurrPcieLinkWidth", handle),
        "pcie_width_max": ask(m, "nvmlDeviceGetMaxPcieLinkWidth", handle),
        "power_limit_w": limit / 1000 if limit else None,
        "power_default_w": default / 1000 if default else None,
        "persistence": ask(m, "nvmlDeviceGetPersistenceMode", handle),
        "ecc": (ask(m, "nvmlDeviceGetEccMode", handle) or [None])[0],
        "mig": mig[0] if mig else None,
        "sm_clock_max_mhz": ask(m, "nvmlDeviceGetMaxClockInfo", handle, m.NVML_CLOCK_SM),
    }


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


class GpuSampler:
    """Polled readings of every GPU; ``read`` costs well under a millisecond per GPU."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._handles = handles(module)
        self._bits = {
            int(getattr(module, constant)): reason
            for constant, reason in THROTTLE_REASONS.items()
            if hasattr(module, constant)
        }

    def read(self) -> list[dict[str, float]]:
        """One dict per GPU: ``sm_mhz``, ``mem_mhz``, ``temp_c``, ``power_w``, ``pcie_gen``."""
        m = self._module
        rows = []
        for handle in self._handles:
            power = ask(m, "nvmlDeviceGetPowerUsage", handle)
            values = {
                "sm_mhz": ask(m, "nvmlDeviceGetClockInfo", handle, m.NVML_CLOCK_SM),
                "mem_mhz": ask(m, "nvmlDeviceGetClockInfo", handle, m.NVML_CLOCK_MEM),
                "temp_c": ask(m, "nvmlDeviceGetTemperature", handle, m.NVML_TEMPERATURE_GPU),
                "power_w": None if power is None else power / 1000,
                "pcie_gen": ask(m, "nvmlDeviceGetCurrPcieLinkGeneration", handle),
            }
            rows.append({key: float(value) for key, value in values.items() if value is not None})
        return rows

    def throttles(self) -> list[set[str]]:
        """Reasons in force now, per GPU."""
        found = []
        for handle in self._handles:
            mask = ask(self._module, "nvmlDeviceGetCurrentClocksEventReasons", handle)
            if mask is None:
                mask = ask(self._module, "nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
            found.append({reason for bit, reason in self._bits.items() if mask & bit})
        return found

    def processes(self) -> list[set[int]]:
        """Ids of processes that compute on each GPU."""
        return [
            {p.pid for p in ask(self._module, "nvmlDeviceGetComputeRunningProcesses", h) or []}
            for h in self._handles
        ]

    def busy(self, processes: list[set[int]]) -> list[float]:
        """Per GPU, the largest share (percent) of its multiprocessors that one of ``processes``
        has used of late; 0 where the driver does not say."""
        found = []
        for handle, known in zip(self._handles, processes, strict=True):
            samples = ask(self._module, "nvmlDeviceGetProcessUtilization", handle, 0) or []
            found.append(max((float(s.smUtil) for s in samples if s.pid in known), default=0.0))
        return found
