"""Rotary positions (Su et al. 2021) in float32: tables, and turning heads of rows.

One table serves every device, so that a position has the same cosines everywhere.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvbench.device.kernels import Shapes
    from kvbench.device.kvtypes import F32


@functools.cache
def tables(shapes: Shapes, positions: int) -> tuple[F32, F32]:
    """(cos, sin), each [positions, rope_dim / 2] float32, from float64; read-only."""
    half = shapes.rope_dim // 2
    frequency = shapes.rope_theta ** (-np.arange(half, dtype=np.float64) * 2 / shapes.rope_dim)
    if shapes.rope_factors:
        frequency /= np.asarray(shapes.rope_factors, np.float64)
    angle = np.arange(positions, dtype=np.float64)[:, None] * frequency
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def turn(heads: F32, cos: F32, sin: F32, *, interleaved: bool) -> None:
    """Rotate ``heads`` [n, heads, head_dim] in place; cos and sin are [n, rope_dim / 2]."""
    half = cos.shape[-1]
    if interleaved:
        first, second = heads[:, :, 0 : 2 * half : 2], heads[:, :, 1 : 2 * half : 2]
    else:
        first, second = heads[:, :, :half], heads[:, :, half : 2 * half]
    c, s = cos[:, None, :], sin[:, None, :]
    a = first * c - second * s
    second[...] = first * s + second * c
    first[...] = a
