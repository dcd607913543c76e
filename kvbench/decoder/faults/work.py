"""Faults of content: an operation that does less, more or something else than it should."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from kvbench.decoder.faults.delays import DelayHooks
from kvbench.device.kernels import POSITION, STATE_COLUMNS
from kvbench.device.ops import Op
from kvbench.transport.plan import Delivery
from kvbench.transport.window import Geometry


class SkipCopies(DelayHooks):
    """Copies of ``site`` are left out."""

    def __init__(self, site: str) -> None:
        super().__init__()
        self.site = site

    def alter(self, op: Op, queue: str) -> Op:
        """Nothing in their place."""
        if op.kind == "copy" and op.site == self.site:
            return replace(op, run=_nothing)
        return op


class Wrap(DelayHooks):
    """Operations of ``site`` run inside ``around``."""

    def __init__(self, site: str, around: Callable[[Op, Any], None]) -> None:
        super().__init__()
        self.site, self.around = site, around

    def alter(self, op: Op, queue: str) -> Op:
        """The wrapped operation."""
        if op.site != self.site:
            return op
        return replace(op, run=lambda handle: self.around(op, handle))


def stands_still(op: Op, handle: Any) -> None:
    """Arg-max is fed back but positions do not move (H20)."""
    state = _state(op)
    with _in_order(handle):
        before = state[:, POSITION:].copy()
        op.run(handle)
        state[:, POSITION:] = before


def reads_beyond(op: Op, handle: Any) -> None:
    """Attention takes in one row more than the sequence has (H5)."""
    state = _state(op)
    with _in_order(handle):
        state[:, POSITION] += 1
        op.run(handle)
        state[:, POSITION] -= 1


def stores_other_bits(op: Op, handle: Any) -> None:
    """The host's row differs from the device's in one bit (H8)."""
    op.run(handle)
    if handle is not None:
        handle.synchronize()  # the bits are changed by the host, after the kernel wrote them
    _, writes = op.spans()
    for span in writes[:1]:
        span.buffer.raw[span.offset] ^= 1


class UnclearedMemory(DelayHooks):
    """Memory whose padding must be zero is taken as it comes (T5, T17a)."""

    def clears(self, buffer: str) -> bool:
        """Neither the arena nor the ring."""
        return not (buffer.startswith("kv") or buffer == "ring")


class PhaseBlindGraph(DelayHooks):
    """Captured graphs are told apart by geometry alone, not by the slot they start at (H1)."""

    def graph_key(self, key: Hashable, geometry: Geometry) -> Hashable:
        """Without the slots."""
        if isinstance(key, tuple) and len(key) == 4:
            return (geometry, key[2], len(_deliveries(key[3])))
        return key


def _deliveries(value: object) -> tuple[Delivery, ...]:
    return value if isinstance(value, tuple) else ()


def _state(op: Op) -> Any:
    reads, _ = op.spans()
    span = next(s for s in reads if s.buffer.name.endswith("/state"))
    return span.buffer.raw.view(np.int32).reshape(-1, STATE_COLUMNS)


def _in_order(handle: Any) -> AbstractContextManager[Any]:
    """What is done to device arrays inside follows the queue's order: a CuPy stream is current."""
    if handle is None:
        return nullcontext()
    stream: AbstractContextManager[Any] = handle
    return stream


def _nothing(_: Any) -> None:
    return
