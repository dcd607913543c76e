"""The CUDA device: CUDA streams as queues, CuPy for memory, events and captured graphs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from kvbench.device.api import Device, Event, Graph, Queue, Record
from kvbench.device.cuda.driver import Launch, function, require
from kvbench.device.limits import Limits
from kvbench.device.memory import Buffer, Span
from kvbench.device.oplog import Entry
from kvbench.device.ops import Op
from kvbench.errors import DeviceError, OutOfDeviceMemory

ALIGN = 256


class CudaDevice(Device):
    """One GPU. Host memory is pinned and mapped unless it is asked for unpinned."""

    kind = "cuda"

    def __init__(self, name: str = "cuda0", *, gpu: int = 0, **common: Any) -> None:
        """``gpu``: the CUDA ordinal. Raises UsageError with what is missing, if anything is."""
        self._cupy = require()
        self._runtime = self._cupy.cuda.runtime
        count = self._runtime.getDeviceCount()
        if gpu >= count:
            raise DeviceError(f"{name}: GPU {gpu} was asked for, {count} are there")
        self.gpu = gpu
        self._pinned: dict[int, Any] = {}
        super().__init__(name, **common)
        with self.current():
            self._runtime.deviceSynchronize()  # creates the context, errors surface here

    # ------------------------------------------------------------------ memory
    def free_bytes(self) -> int:
        """What the driver has left, or what the stated capacity leaves if that is less."""
        with self.current():
            free: int = self._runtime.memGetInfo()[0]
        return min(free, super().free_bytes())

    def _alloc(self, buffer: Buffer, fill: int) -> Any:
        with self.current(), self._errors(f"alloc {buffer.name}"):
            if buffer.space == "device":
                return self._device_array(buffer, fill)
            raw = self._host_array(buffer)
            raw[:] = fill
            return raw

    def _device_array(self, buffer: Buffer, fill: int) -> Any:
        cupy = self._cupy
        size = max(buffer.nbytes, 1)
        # Not from CuPy's pool: what is freed here is really given back, and nothing is recycled.
        memory = cupy.cuda.memory.MemoryPointer(cupy.cuda.memory.Memory(size), 0)
        raw = cupy.ndarray((buffer.nbytes,), cupy.uint8, memory)
        self._runtime.memset(memory.ptr, fill, size)
        self._runtime.deviceSynchronize()
        return raw

    def _host_array(self, buffer: Buffer) -> npt.NDArray[np.uint8]:
        if not buffer.pinned:
            raw = np.empty(buffer.nbytes + ALIGN, np.uint8)
            start = -raw.ctypes.data % ALIGN
            return raw[start : start + buffer.nbytes]
        runtime = self._runtime
        size = max(buffer.nbytes, 1)
        # Not from CuPy's pool either, which may hand a freed block out at once (H16).
        memory = self._cupy.cuda.PinnedMemory(
            size, runtime.hostAllocPortable | runtime.hostAllocMapped
        )
        self._pinned[buffer.id] = memory
        view = (ctypes.c_uint8 * size).from_address(memory.ptr)
        return np.ctypeslib.as_array(view)[: buffer.nbytes]

    def _free(self, buffer: Buffer) -> None:
        if self.poison and buffer.nbytes:
            with self.current():
                if buffer.space == "device":
                    self._runtime.memset(buffer.raw.data.ptr, 0xFF, buffer.nbytes)
                    self._runtime.deviceSynchronize()
                else:
                    buffer.raw[:] = 0xFF
        buffer.raw = None
        self._pinned.pop(buffer.id, None)

    def _copy(self, dst: Span, src: Span) -> Callable[[Any], None]:
        runtime = self._runtime
        kinds = {
            ("host", "device"): runtime.memcpyHostToDevice,
            ("device", "host"): runtime.memcpyDeviceToHost,
            ("device", "device"): runtime.memcpyDefault,
            ("host", "host"): runtime.memcpyHostToHost,
        }
        kind = kinds[src.buffer.space, dst.buffer.space]
        to, of = _pointer(dst), _pointer(src)
        if dst.count == 1:
            return lambda stream: runtime.memcpyAsync(to, of, dst.length, kind, stream.ptr)
        return lambda stream: runtime.memcpy2DAsync(
            to, dst.pitch, of, src.pitch, dst.length, dst.count, kind, stream.ptr
        )

    # ------------------------------------------------------- queues and events
    def _open_queue(self, queue: Queue) -> Any:
        with self.current(), self._errors(queue.name):
            return self._cupy.cuda.Stream(non_blocking=True)

    def _close_queue(self, queue: Queue) -> None:
        if queue.native is None:
            return
        stream, queue.native = queue.native, None
        with self.current(), self._errors(queue.name):
            stream.synchronize()

    def _record(self, queue: Queue, event: Event, record: Record) -> None:
        with self.current(), self._errors(event.name):
            if event.native is None:
                event.native = self._cupy.cuda.Event(disable_timing=True)
            event.native.record(queue.native)

    def _wait(self, queue: Queue, event: Event, record: Record) -> None:
        # CUDA binds the latest record too; api.py has seen to it that there is one.
        with self._errors(event.name):
            queue.native.wait_event(event.native)

    # -------------------------------------------------------------------- work
    def _enqueue(self, queue: Queue, op: Op, entry: Entry | None) -> None:
        with self.current(), self._errors(op.label):
            self._spin(queue, self.hooks.delay(op, queue.name))
            op.run(queue.native)

    def _spin(self, queue: Queue, seconds: float) -> None:
        if seconds > 0:
            nanoseconds = ctypes.c_uint64(int(seconds * 1e9))
            spin = function("tokens", "spin", WT="F32")
            Launch(spin, (1,), (1,), nanoseconds)(queue.native.ptr)

    # -------------------------------------------------------------------- host
    def _sync_record(self, event: Event, record: Record) -> None:
        with self._errors(event.name):
            event.native.synchronize()

    def _sync_queue(self, queue: Queue) -> None:
        with self._errors(queue.name):
            queue.native.synchronize()

    def synchronize_all(self) -> None:
        """Wait for everything on this GPU: for set-up, never in a token loop."""
        with self.current(), self._errors("synchronize"):
            self._runtime.deviceSynchronize()

    def limits(self) -> Limits:
        """Pinned copies of 64 MiB, and a kernel that reads a GiB; some tenths of a second."""
        from kvbench.device.cuda.rates import measure  # needs the kernels, which need this module

        found = measure(self, device_bytes=1 << 30)
        return Limits(found.link, found.read)

    # ------------------------------------------------------------------ graphs
    def _begin_capture(self, graph: Graph) -> None:
        with self.current(), self._errors("capture"):
            # Relaxed: first use of a kernel loads its module, which a strict capture forbids.
            graph.origin.native.begin_capture(self._runtime.streamCaptureModeRelaxed)

    def _end_capture(self, graph: Graph, *, ok: bool) -> None:
        with self.current():
            if ok:
                with self._errors("capture"):
                    graph.native = graph.origin.native.end_capture()
                    graph.native.upload(graph.origin.native)
                return
            try:  # an abandoned capture leaves its streams usable, and reports nothing new
                graph.origin.native.end_capture()
            except (self._runtime.CUDARuntimeError, RuntimeError):
                return

    def _capture_op(self, queue: Queue, op: Op) -> None:
        self._enqueue(queue, op, None)

    def _capture_record(self, queue: Queue, event: Event, record: Record) -> None:
        self._record(queue, event, record)

    def _capture_wait(self, queue: Queue, event: Event, record: Record) -> None:
        self._wait(queue, event, record)

    def _launch(self, graph: Graph, entries: list[Entry | None]) -> None:
        with self.current(), self._errors("graph"):
            graph.native.launch(graph.origin.native)

    # ----------------------------------------------------------------- details
    def current(self) -> Any:
        """A context in which CUDA calls go to this device's GPU."""
        return self._cupy.cuda.Device(self.gpu)

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """CUDA's errors as this project's, naming what was being done."""
        cupy = self._cupy
        try:
            yield
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise OutOfDeviceMemory(f"{self.name}: {what}: {error}") from error
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status == cupy.cuda.runtime.errorMemoryAllocation:
                raise OutOfDeviceMemory(f"{self.name}: {what}: {error}") from error
            raise DeviceError(f"{self.name}: {what}: {error}") from error


def _pointer(span: Span) -> int:
    raw = span.buffer.raw
    base = raw.data.ptr if span.buffer.space == "device" else raw.ctypes.data
    return int(base) + span.offset
