"""KV types: how one token's K (or V) of one layer becomes bytes, and back (H7, H8).

The block formats are ggml's: q8_0 is a float16 scale and 32 int8 values (34 bytes), q4_0 a
float16 scale and 32 nibbles (18 bytes). A row is padded to whole groups of 8 blocks, so that
every row starts on a multiple of 16 bytes and no block is ever split: the allocated size
(``pitch``) may exceed the logical one (``row_bytes``). The padding holds zeros and is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from kvbench.errors import SettingError

F32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
KVName = Literal["f32", "f16", "q8_0", "q4_0"]

BLOCK = 32
GROUP = 8
"""Blocks per group of padding: 8 x 34 and 8 x 18 are multiples of 16."""

_HALF = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
"""Every float16 as float32."""
_HALF_BITS = np.int32(-(1 << 31) | 0x0FFFE000)
"""Sign (copied upwards by the shift of a signed value), exponent and mantissa, shifted by 13."""
_HALF_SCALE = np.float32(2.0**112)
_HALF_END = np.float32(65536)


@dataclass(frozen=True, slots=True)
class KVType(ABC):
    """Encoding of rows of ``values`` float32 numbers."""

    values: int

    @property
    @abstractmethod
    def name(self) -> KVName: ...

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """Logical bytes of a row."""

    @property
    @abstractmethod
    def pitch(self) -> int:
        """Allocated bytes of a row."""

    @abstractmethod
    def encode(self, rows: F32, out: Bytes) -> None:
        """Encode [n, values] into the first ``row_bytes`` bytes of each row of ``out``."""

    @abstractmethod
    def decode(self, rows: Bytes, out: F32) -> None:
        """Decode [n, pitch] bytes into ``out`` [n, values]."""


class Single(KVType):
    """IEEE single precision: nothing is rounded, to compare with a peer that rounds nothing."""

    name: KVName = "f32"

    @property
    def row_bytes(self) -> int:
        return 4 * self.values

    @property
    def pitch(self) -> int:
        return -(-self.row_bytes // 16) * 16

    def encode(self, rows: F32, out: Bytes) -> None:
        out[:, : self.row_bytes] = np.ascontiguousarray(rows).view(np.uint8)

    def decode(self, rows: Bytes, out: F32) -> None:
        np.copyto(out, rows.view(np.float32)[:, : self.values])


class F16(KVType):
    """IEEE half precision."""

    name: KVName = "f16"

    @property
    def row_bytes(self) -> int:
        return 2 * self.values

    @property
    def pitch(self) -> int:
        return -(-self.row_bytes // 16) * 16

    def encode(self, rows: F32, out: Bytes) -> None:
        out[:, : self.row_bytes] = rows.astype(np.float16).view(np.uint8)

    def decode(self, rows: Bytes, out: F32) -> None:
        """Sign, exponent and mantissa move to float32's places and the exponent's bias is made up
        for by an exact product; infinities and NaN, which that turns large, come from the table."""
        bits = out.view(np.int32)
        np.left_shift(rows.view(np.int16)[:, : self.values], 13, out=bits, dtype=np.int32)
        np.bitwise_and(bits, _HALF_BITS, out=bits)
        np.multiply(out, _HALF_SCALE, out=out)
        if out.max(initial=0) >= _HALF_END or out.min(initial=0) <= -_HALF_END:
            np.take(_HALF, rows.view(np.uint16)[:, : self.values], out=out, mode="clip")


class _Blocks(KVType):
    """What the block formats share."""

    block_bytes: int

    @property
    def row_bytes(self) -> int:
        return self.values // BLOCK * self.block_bytes

    @property
    def pitch(self) -> int:
        groups = -(-self.values // (BLOCK * GROUP))
        return groups * GROUP * self.block_bytes

    def _blocks(self, rows: Bytes) -> Bytes:
        """[n, blocks, block_bytes] of the logical part."""
        n = len(rows)
        return rows[:, : self.row_bytes].reshape(n, -1, self.block_bytes)

    @staticmethod
    def _scales(blocks: Bytes) -> F32:
        halves = np.ascontiguousarray(blocks[:, :, :2]).view(np.uint16)
        return _HALF[halves]


class Q8_0(_Blocks):  # noqa: N801 - the format's name
    """32 values as int8 times a float16 scale of amax / 127."""

    name: KVName = "q8_0"
    block_bytes = 34

    def encode(self, rows: F32, out: Bytes) -> None:
        n = len(rows)
        x = rows.reshape(n, -1, BLOCK)
        d = np.abs(x).max(axis=2, keepdims=True) / np.float32(127)
        inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
        scaled = x * inverse
        q = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
        blocks = np.empty((n, x.shape[1], self.block_bytes), np.uint8)
        blocks[:, :, :2] = d.astype(np.float16).view(np.uint8)
        blocks[:, :, 2:] = q.view(np.uint8)
        out[:, : self.row_bytes] = blocks.reshape(n, -1)

    def decode(self, rows: Bytes, out: F32) -> None:
        blocks = self._blocks(rows)
        shaped = out.reshape(len(rows), -1, BLOCK)
        np.multiply(blocks[:, :, 2:].view(np.int8), self._scales(blocks), out=shaped)


class Q4_0(_Blocks):  # noqa: N801 - the format's name
    """32 nibbles, 8 meaning zero, times a float16 scale of (largest by magnitude) / −8."""

    name: KVName = "q4_0"
    block_bytes = 18

    def encode(self, rows: F32, out: Bytes) -> None:
        n = len(rows)
        x = rows.reshape(n, -1, BLOCK)
        at = np.abs(x).argmax(axis=2)[:, :, None]
        d = np.take_along_axis(x, at, axis=2) / np.float32(-8)
        inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
        q = np.minimum(15, (x * inverse + np.float32(8.5)).astype(np.int8)).astype(np.uint8)
        blocks = np.empty((n, x.shape[1], self.block_bytes), np.uint8)
        blocks[:, :, :2] = d.astype(np.float16).view(np.uint8)
        blocks[:, :, 2:] = q[:, :, :16] | (q[:, :, 16:] << 4)
        out[:, : self.row_bytes] = blocks.reshape(n, -1)

    def decode(self, rows: Bytes, out: F32) -> None:
        blocks = self._blocks(rows)
        scales = self._scales(blocks)
        shaped = out.reshape(len(rows), -1, BLOCK)
        packed = blocks[:, :, 2:]
        np.multiply((packed & 15).view(np.int8) - np.int8(8), scales, out=shaped[:, :, :16])
        np.multiply((packed >> 4).view(np.int8) - np.int8(8), scales, out=shaped[:, :, 16:])


_TYPES: dict[str, type[KVType]] = {"f32": Single, "f16": F16, "q8_0": Q8_0, "q4_0": Q4_0}


def kv_type(name: str, *, n_kv_heads: int, head_dim: int) -> KVType:
    """The KV type ``name`` for a model's heads; block formats need whole blocks per head."""
    if name not in _TYPES:
        raise SettingError("kv_type", name, "one of " + ", ".join(_TYPES))
    if issubclass(_TYPES[name], _Blocks) and head_dim % BLOCK:
        raise SettingError(
            "kv_type",
            name,
            f"a head of {head_dim} values is no multiple of the block of {BLOCK}; use f16",
        )
    return _TYPES[name](n_kv_heads * head_dim)
