"""What this machine can move: the two ceilings of every token, measured in the same run.

A token's weights and windows are read from device memory; its host-resident windows cross the
link. ``measure`` gives bytes per second for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from kvbench.device.cuda.driver import Launch, function
from kvbench.device.cuda.products import address

if TYPE_CHECKING:
    from kvbench.device.cuda.device import CudaDevice

ROUNDS = 7


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes per second, medians of ``ROUNDS``."""

    link: float
    """Pinned host memory to the device, in copies of 64 MiB."""
    link_by_size: dict[int, float]
    """The same by size of copy (bytes)."""
    pageable: float
    """Host memory that is not pinned, in copies of 64 MiB."""
    read: float
    """Device memory, read once by a kernel that keeps nothing."""
    copy: float
    """Device memory to device memory, bytes read plus bytes written."""

    def as_dict(self) -> dict[str, float]:
        """JSON-able, GB/s."""
        return {
            "link_gb_s": self.link / 1e9,
            "pageable_gb_s": self.pageable / 1e9,
            "device_read_gb_s": self.read / 1e9,
            "device_copy_gb_s": self.copy / 1e9,
            **{
                f"link_{size >> 10}_kib_gb_s": rate / 1e9
                for size, rate in self.link_by_size.items()
            },
        }


def seconds(device: CudaDevice, work: Callable[[int], None], rounds: int = ROUNDS) -> float:
    """Median seconds of ``work`` (given a stream's pointer), by events, after one warm-up."""
    cupy = device._cupy
    stream = cupy.cuda.Stream(non_blocking=True)
    times = []
    for _ in range(rounds + 1):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(stream)
        work(stream.ptr)
        end.record(stream)
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
    return float(median(times[1:]))


def measure(device: CudaDevice, *, device_bytes: int = 4 << 30) -> Rates:
    """Measure, with ``device_bytes`` of scratch on the device (less if less is free)."""
    device_bytes = min(device_bytes, device.free_bytes() // 2) // 4096 * 4096
    runtime = device._runtime
    large = device.alloc("rate scratch", device_bytes, clear=False)
    sink = device.alloc("rate sink", 256)
    sizes = [1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26]
    host = device.alloc("rate host", 1 << 28, "host")
    loose = device.alloc("rate pageable", 1 << 26, "host", pinned=False)
    host.raw[:] = loose.raw[:1].repeat(host.nbytes) + np.uint8(1)
    to, of = address(large), address(host)

    def link(size: int) -> float:
        copies = max(1, host.nbytes // size // 4)

        def work(stream: int) -> None:
            for i in range(copies):
                at = i * size
                runtime.memcpyAsync(to + at, of + at, size, runtime.memcpyHostToDevice, stream)

        return copies * size / seconds(device, work)

    def pageable(stream: int) -> None:
        source = loose.raw.ctypes.data
        runtime.memcpyAsync(to, source, loose.nbytes, runtime.memcpyHostToDevice, stream)

    half = device_bytes // 2

    def copy(stream: int) -> None:
        runtime.memcpyAsync(to + half, to, half, runtime.memcpyDeviceToDevice, stream)

    by_size = {size: link(size) for size in sizes}
    result = Rates(
        link=by_size[sizes[-1]],
        link_by_size=by_size,
        pageable=loose.nbytes / seconds(device, pageable),
        read=device_bytes / seconds(device, _reader(to, device_bytes, address(sink))),
        copy=2 * half / seconds(device, copy),
    )
    for buffer in (large, sink, host, loose):
        device.free(buffer)
    return result


def _reader(start: int, nbytes: int, sink: int) -> Callable[[int], None]:
    from kvbench.device.cuda.arguments import Read

    kernel = function("weights", "read_all", WT="F32")
    return Launch(kernel, (132 * 8,), (512,), Read(start, nbytes // 16, sink), overlap=False)
