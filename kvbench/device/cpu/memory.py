"""What the cpu executors share: two arenas of NumPy memory and copies between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvbench.device.api import Device
from kvbench.device.memory import Buffer, Span

ALIGN = 256


def aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """``nbytes`` uninitialised bytes starting on a 256-byte boundary."""
    raw = np.empty(nbytes + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + nbytes]


def rows_of(span: Span) -> npt.NDArray[np.uint8]:
    """The span's bytes as a [count, length] view."""
    raw: npt.NDArray[np.uint8] = span.buffer.raw
    return np.lib.stride_tricks.as_strided(
        raw[span.offset :], (span.count, span.length), (span.pitch or span.length, 1)
    )


class CpuDevice(Device):
    """Memory and copies of a machine without a GPU; subclasses execute the queues."""

    kind = "cpu"

    def _alloc(self, buffer: Buffer, fill: int) -> npt.NDArray[np.uint8]:
        raw = aligned(buffer.nbytes)
        raw[:] = fill
        return raw

    def _free(self, buffer: Buffer) -> None:
        if self.poison:
            buffer.raw[:] = 0xFF  # a late reader sees NaN rather than what used to be there
        buffer.raw = None

    def _copy(self, dst: Span, src: Span) -> Callable[[Any], None]:
        to, of = rows_of(dst), rows_of(src)

        def run(_: Any) -> None:
            np.copyto(to, of)

        return run
