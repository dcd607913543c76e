"""A walk over a GGUF file's header that trusts nothing, before a library that trusts it reads it.

A count that was damaged in the file can keep a reader busy for ages; here every count is held
against the bytes that are there. It checks structure, not meaning.
"""

from __future__ import annotations

import mmap
import struct
from math import prod
from pathlib import Path

from kvbench.errors import UsageError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MAX_DIMENSIONS = 4


def check_header(path: Path) -> None:
    """Raise UsageError, with the byte where it went wrong, unless the header fits the file."""
    size = path.stat().st_size
    if size < 24:
        raise UsageError(f"model {path}: not a GGUF file: {size} bytes")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        _Walk(path, data).header()


class _Walk:
    """A position in the file; every step checks that what it passes is there."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, 0

    def header(self) -> None:
        if self._data[:4] != _MAGIC:
            raise UsageError(f"model {self._path}: not a GGUF file: it begins {self._data[:4]!r}")
        self._at = 4
        version = self._number("<I")
        if version not in _VERSIONS:
            raise self._error(f"version {version}; allowed: 2, 3 (little-endian)")
        tensors, fields = self._number("<Q"), self._number("<Q")
        alignment = 32
        for _ in range(self._plausible(fields, 12)):
            key = self._string()
            kind = self._number("<I")
            if key == b"general.alignment" and kind == 4:
                (alignment,) = struct.unpack_from("<I", self._data, self._need(4))
            self._value(kind, depth=0)
        ends = [self._tensor() for _ in range(self._plausible(tensors, 24))]
        if not 1 <= alignment <= 1 << 20:
            raise self._error(f"alignment {alignment}")
        start = -(-self._at // alignment) * alignment
        if ends and start + max(ends) > len(self._data):
            missing = start + max(ends) - len(self._data)
            raise UsageError(
                f"model {self._path}: cut short: {missing} bytes of weights are missing"
            )

    def _tensor(self) -> int:
        """One entry of the tensor table; returns where its data ends, after the data's start."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        self._string()
        dimensions = self._number("<I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._error(f"a tensor of {dimensions} dimensions")
        shape = [self._number("<Q") for _ in range(dimensions)]
        kind, offset = self._number("<I"), self._number("<Q")
        known = {int(t): GGML_QUANT_SIZES[t] for t in GGMLQuantizationType}
        if kind not in known:
            raise self._error(f"a tensor of unknown type {kind}")
        block, block_bytes = known[kind]
        if not all(shape) or shape[0] % block:
            raise self._error(f"a tensor of shape {shape} in blocks of {block}")
        return offset + prod(shape) // block * block_bytes

    def _value(self, kind: int, depth: int) -> None:
        if kind in _SCALAR_BYTES:
            self._pass(_SCALAR_BYTES[kind])
        elif kind == _STRING:
            self._string()
        elif kind == _ARRAY and depth == 0:
            inner, count = self._number("<I"), self._number("<Q")
            if inner in _SCALAR_BYTES:
                self._pass(count * _SCALAR_BYTES[inner])
                return
            for _ in range(self._plausible(count, 8)):
                self._value(inner, depth + 1)
        else:
            raise self._error(f"a value of unknown type {kind}")

    def _string(self) -> bytes:
        length = self._number("<Q")
        start = self._need(length)
        self._at += length
        return self._data[start : start + length] if length < 64 else b""

    def _number(self, layout: str) -> int:
        size = struct.calcsize(layout)
        (value,) = struct.unpack_from(layout, self._data, self._need(size))
        self._at += size
        return int(value)

    def _pass(self, count: int) -> None:
        self._need(count)
        self._at += count

    def _need(self, count: int) -> int:
        """The position, if ``count`` more bytes are there."""
        if count > len(self._data) - self._at:
            raise self._error(f"{count} bytes needed, {len(self._data) - self._at} left")
        return self._at

    def _plausible(self, count: int, least_bytes: int) -> int:
        """``count``, if that many entries of at least ``least_bytes`` can follow."""
        self._need(count * least_bytes)
        return count

    def _error(self, what: str) -> UsageError:
        return UsageError(f"model {self._path}: damaged at byte {self._at}: {what}")
