"""What a copy over the link costs the kernels that run beside it: three kinds of kernel, each alone
and beside copies that never pause, to the device and from it.

python -m tests.cuda.bench_beside
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvbench.device.cuda import arguments
from kvbench.device.cuda.device import CudaDevice
from kvbench.device.cuda.driver import Launch, function
from kvbench.device.cuda.products import address
from kvbench.device.cuda.rates import measure, seconds

LARGE, SMALL = 4 << 30, 8 << 20
"""Bytes: far more than L2 holds, and what it holds easily."""
SLOT = 35 << 20
COPIES = 600
"""Of a slot each, queued before the kernels: 0.4 s at 55 GB/s."""
CHAIN = 200
"""Short kernels, one behind another."""

Work = Callable[[int], None]


def kernels(device: CudaDevice) -> dict[str, tuple[Work, int]]:
    """What is timed, and how often it does it."""
    large, sink = device.alloc("large", LARGE), device.alloc("sink", 256)
    rows = [device.alloc(f"rows{i}", 4096) for i in range(2)]
    state = device.alloc("state", 32)

    def reader(nbytes: int, times: int) -> Work:
        read = function("weights", "read_all", WT="F32")
        given = arguments.Read(address(large), nbytes // 16, address(sink))
        one = Launch(read, (132 * 8,), (512,), given, overlap=False)
        return in_turn([one] * times)

    put = function("rows", "put_rows", KV="F16")
    steps = [
        Launch(
            put, (2, 1), (128,),
            arguments.Put(address(of), address(to), address(state), 2048, 0, 2048, 2048, 3),
        )
        for of, to in (rows, rows[::-1])
    ]  # fmt: skip

    return {
        "reads of device memory": (captured(device, reader(LARGE, 8)), 8),
        "reads that L2 answers": (captured(device, reader(SMALL, 400)), 400),
        "short kernels in a chain": (captured(device, in_turn(steps * (CHAIN // 2))), CHAIN),
    }


def in_turn(launches: list[Launch]) -> Work:
    """One behind another."""

    def work(stream: int) -> None:
        for one in launches:
            one(stream)

    return work


class _Stream:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def captured(device: CudaDevice, work: Work) -> Work:
    """``work`` as one graph: the host has no part in its time."""
    stream = device._cupy.cuda.Stream(non_blocking=True)
    stream.begin_capture(device._runtime.streamCaptureModeRelaxed)
    work(stream.ptr)
    graph: Any = stream.end_capture()
    return lambda pointer: graph.launch(_Stream(pointer))


@contextmanager
def copying(device: CudaDevice, kind: str) -> Iterator[Any]:
    """Copies on a queue of their own meanwhile; yields an event behind the last."""
    cupy, runtime = device._cupy, device._runtime
    stream, done = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event()
    host = device.alloc("host", 2 * SLOT, "host")
    slots = device.alloc("slots", 2 * SLOT)
    for i in range(COPIES if kind != "alone" else 0):
        at = i % 2 * SLOT
        to, of, way = address(slots, at), address(host, at), runtime.memcpyHostToDevice
        if kind == "to the host":
            to, of, way = of, to, runtime.memcpyDeviceToHost
        runtime.memcpyAsync(to, of, SLOT, way, stream.ptr)
    done.record(stream)
    yield done
    stream.synchronize()
    device.free(host)
    device.free(slots)


def main() -> None:
    with CudaDevice() as device:
        rates = measure(device)
        print(f"link {rates.link / 1e9:.1f} GB/s, read {rates.read / 1e9:.0f} GB/s")
        for name, (work, times) in kernels(device).items():
            alone = 0.0
            for kind in ("alone", "to the device", "to the host", "alone"):
                with copying(device, kind) as done:
                    took = seconds(device, work, 9) / times
                    assert kind == "alone" or not done.done, "the copies ended first"
                alone = alone or took
                print(
                    f"{name:26s} {kind:14s} {took * 1e6:9.2f} us each, {took / alone:.3f} of alone"
                )


if __name__ == "__main__":
    main()
