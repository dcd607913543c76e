"""What copies over the link and kernels cost each other: each alone, and beside the other.

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
from kvbench.device.memory import Buffer

LARGE, SMALL = 4 << 30, 8 << 20
"""Bytes: far more than L2 holds, and what it holds easily."""
SLOT = 35 << 20
COPIES = 60
"""Of a slot each, one behind another: 40 ms at 55 GB/s."""
CHAIN = 4000
"""Short kernels, one behind another."""
BESIDE = 0.4
"""Seconds of other work queued before what is timed; it never pauses."""

Work = Callable[[int], None]


def kernels(held: list[Buffer]) -> dict[str, tuple[list[Launch], int]]:
    """Launches, and how many of them are one; ``held``: four buffers, the first of LARGE bytes."""
    large, state, *rows = held

    def reader(nbytes: int, times: int) -> list[Launch]:
        read = function("weights", "read_all", WT="F32")
        given = arguments.Read(address(large), nbytes // 16, address(rows[0]))
        return [Launch(read, (132 * 8,), (512,), given, overlap=False)] * times

    put = function("rows", "put_rows", KV="F16")
    steps = [
        Launch(
            put, (2, 1), (128,),
            arguments.Put(address(of), address(to), address(state), 2048, 0, 2048, 2048, 3),
        )
        for of, to in (rows, rows[::-1])
    ]  # fmt: skip
    return {
        "reads of device memory": (reader(LARGE, 8), 8),
        "reads that L2 answers": (reader(SMALL, 2000), 2000),
        "short kernels in a chain": (steps * (CHAIN // 2), CHAIN),
    }


def copies(device: CudaDevice, host: Buffer, slots: Buffer) -> dict[str, Work]:
    """Copies between two slots' worth of pinned memory and of device memory."""
    runtime = device._runtime

    def work(stream: int, *, to_host: bool) -> None:
        for i in range(COPIES):
            to, of, way = slots, host, runtime.memcpyHostToDevice
            if to_host:
                to, of, way = host, slots, runtime.memcpyDeviceToHost
            at = i % 2 * SLOT
            runtime.memcpyAsync(address(to, at), address(of, at), SLOT, way, stream)

    return {
        "copies to the device": lambda stream: work(stream, to_host=False),
        "copies to the host": lambda stream: work(stream, to_host=True),
    }


class _Stream:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def captured(device: CudaDevice, launches: list[Launch]) -> Work:
    """``launches`` as one graph: the host has no part in its time."""
    stream = device._cupy.cuda.Stream(non_blocking=True)
    stream.begin_capture(device._runtime.streamCaptureModeRelaxed)
    for one in launches:
        one(stream.ptr)
    graph: Any = stream.end_capture()
    return lambda pointer: graph.launch(_Stream(pointer))


@contextmanager
def beside(device: CudaDevice, other: Work | None) -> Iterator[None]:
    """``other`` runs meanwhile on a queue of its own, from before to after."""
    if other is None:
        yield
        return
    rounds = int(BESIDE / seconds(device, other, 3)) + 1
    stream, done = device._cupy.cuda.Stream(non_blocking=True), device._cupy.cuda.Event()
    for _ in range(rounds):
        other(stream.ptr)
    done.record(stream)
    yield
    assert not done.done, "what ran beside ended first"
    stream.synchronize()


def compare(
    device: CudaDevice, name: str, work: Work, times: int, others: dict[str, Work], rounds: int
) -> None:
    """Print the time of ``work``, which does something ``times`` times, alone and beside each."""
    alone = seconds(device, work, rounds) / times
    print(f"{name:26s} {'alone':28s} {alone * 1e6:9.2f} us each")
    for label, other in others.items():
        with beside(device, other):
            took = seconds(device, work, rounds) / times
        print(f"{name:26s} {'beside ' + label:28s} {took * 1e6:9.2f} us each, {took / alone:.3f}")


def main() -> None:
    with CudaDevice() as device:
        rates = measure(device)
        print(f"link {rates.link / 1e9:.1f} GB/s, read {rates.read / 1e9:.0f} GB/s")
        held = [device.alloc("large", LARGE), *(device.alloc(n, 4096) for n in ("s", "a", "b"))]
        host, slots = device.alloc("host", 2 * SLOT, "host"), device.alloc("slots", 2 * SLOT)
        moved = copies(device, host, slots)
        timed = {n: (captured(device, ones), times) for n, (ones, times) in kernels(held).items()}
        for name, (work, times) in timed.items():
            compare(device, name, work, times, moved, 9)
        for name, work in moved.items():
            compare(device, name, work, COPIES, {n: w for n, (w, _) in timed.items()}, 4)


if __name__ == "__main__":
    main()
