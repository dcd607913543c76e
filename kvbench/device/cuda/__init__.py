"""CUDA through CuPy. Importing this needs no GPU; opening a device says what is missing."""

from __future__ import annotations

from typing import Any

from kvbench.device.cuda.device import CudaDevice
from kvbench.device.cuda.driver import require
from kvbench.device.cuda.kernel_set import CudaKernels

__all__ = ["CudaDevice", "CudaKernels", "native", "open_cuda"]


def native() -> bool:
    """Whether this is NVIDIA's own runtime: a HIP build waits unconditionally (S4)."""
    return not require().cuda.runtime.is_hip


def open_cuda(index: int, name: str = "", **common: Any) -> CudaDevice:
    """Logical device ``index``: GPUs are taken in turn, so that two may share one.

    Raises UsageError with what is missing on this machine, in one line.
    """
    count = require().cuda.runtime.getDeviceCount()
    return CudaDevice(f"{name or 'cuda'}{index}", gpu=index % count, **common)
