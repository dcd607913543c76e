"""Moving cached rows and turning their K on: a context shift, in host arithmetic on any device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvbench.device.kernels import Move, Shapes, View
from kvbench.device.kvtypes import Bytes, KVType
from kvbench.device.memory import Span
from kvbench.device.rotary import turn


def shift_rows(
    raw: Bytes, view: View, codec: KVType, shapes: Shapes, moves: Sequence[Move], delta: int
) -> None:
    """Apply ``moves`` to ``raw`` (the bytes of ``view.buffer``); K turns by ``delta`` positions.

    A row is decoded, turned in float32 and encoded again, as engines do in a K-shift.
    """
    half = shapes.rope_dim // 2
    exponent = -np.arange(half, dtype=np.float64) * 2 / shapes.rope_dim
    frequency = shapes.rope_theta**exponent
    if shapes.rope_factors:
        frequency /= np.asarray(shapes.rope_factors, np.float64)
    cos = np.cos(delta * frequency).astype(np.float32)[None]
    sin = np.sin(delta * frequency).astype(np.float32)[None]
    for lane, source, target, size in moves:
        for part in (0, 1):
            rows = _rows(raw, view, part, lane, source, size).copy()
            if part == 0 and delta:
                values = np.empty((size, codec.values), np.float32)
                codec.decode(rows, values)
                heads = values.reshape(size, shapes.n_kv_heads, shapes.head_dim)
                turn(heads, cos, sin, interleaved=shapes.rope_interleaved)
                codec.encode(values, rows)
            _rows(raw, view, part, lane, target, size)[:] = rows


def shift_spans(view: View, moves: Sequence[Move]) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """(reads, writes) of ``shift_rows``."""
    reads = tuple(view.rows(p, m.lane, m.source, m.source + m.size) for m in moves for p in (0, 1))
    writes = tuple(view.rows(p, m.lane, m.target, m.target + m.size) for m in moves for p in (0, 1))
    return reads, writes


def _rows(raw: Bytes, view: View, part: int, lane: int, start: int, count: int) -> Bytes:
    offset = view.row(part, lane, start)
    return raw[offset : offset + count * view.pitch].reshape(count, view.pitch)
