"""Named float32 weights, laid out so that every product of the decode path is one ``W @ x``.

``embed`` [V, D], ``head`` [V, D] (the same array when tied), ``final_norm`` [D]; for layer i
``i.attn_norm`` [D], ``i.wqkv`` [(H + 2 Hkv) hd, D] (q rows, then k rows, then v rows),
``i.wo`` [D, H hd], where the model has them ``i.bqkv`` [(H + 2 Hkv) hd] and ``i.q_norm``,
``i.k_norm`` [hd], ``i.ffn_norm`` [D], ``i.w_gate_up`` [2 F, D] (gate rows, then up rows),
``i.w_down`` [D, F]. A recurrent layer has ``i.w_rec`` [2 D, D] (gate rows, then input rows) in
place of ``wqkv``, and ``i.wo`` [D, D]: with a state s [D] per sequence, a = sigmoid(gate),
s = a s + (1 - a) input, out = wo @ s. ``ModelConfig.tensor_shapes`` lists them all.

Arrays are C-contiguous, start on 64-byte boundaries, and are read-only: an arm that wrote to its
weights would change the next arm's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Weights = Mapping[str, Array]

ALIGNMENT = 64


def align_up(offset: int) -> int:
    """The first multiple of ``ALIGNMENT`` at or after ``offset`` (bytes)."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def aligned_empty(shape: tuple[int, ...]) -> Array:
    """An uninitialised float32 array of ``shape`` that starts on a 64-byte boundary."""
    size = int(np.prod(shape, dtype=np.int64)) * 4
    raw = np.empty(size + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(np.float32).reshape(shape)
