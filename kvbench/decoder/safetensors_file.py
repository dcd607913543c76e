"""Where tensors lie in a safetensors file, checked before any of them is read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.decoder.weights import Array
from kvbench.errors import UsageError

MAX_HEADER = 100 << 20
"""The format's own limit, in bytes."""

_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}
"""Types that become float32 without a scale; bytes of an element."""


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor's bytes: ``[start, stop)`` of ``file``."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_places(file: Path) -> dict[str, Place]:
    """Every tensor of ``file`` by name.

    Raises UsageError for a header that is damaged, a type that is not one of F32, F16, BF16, F64,
    and tensors that overlap, leave the file or have another size than their shape says.
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as data:
            length = int.from_bytes(data.read(8), "little")
            if size < 8 or length > min(MAX_HEADER, size - 8):
                raise _damaged(file, f"its header would take {length} bytes of {size}")
            raw = json.loads(data.read(length))
    except OSError as error:
        raise UsageError(f"model file {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise _damaged(file, f"its header is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise _damaged(file, "its header is not an object")
    raw.pop("__metadata__", None)
    places = {name: _place(file, name, entry, 8 + length) for name, entry in raw.items()}
    end = 8 + length
    for name, place in sorted(places.items(), key=lambda item: item[1].start):
        if place.start < end:
            raise _damaged(file, f"tensor {name!r} overlaps another one")
        end = place.stop
    if end > size:
        raise _damaged(file, f"its tensors need {end} bytes, it has {size}: truncated?")
    return places


def _place(file: Path, name: str, entry: Any, base: int) -> Place:
    try:
        dtype, shape = entry["dtype"], entry["shape"]
        start, stop = entry["data_offsets"]
        whole = all(isinstance(n, int) and n >= 0 for n in [*shape, start, stop])
    except (TypeError, KeyError, ValueError):
        raise _damaged(file, f"the entry of tensor {name!r}") from None
    if not whole:
        raise _damaged(file, f"the entry of tensor {name!r}")
    if dtype not in _SIZES:
        allowed = ", ".join(_SIZES)
        raise UsageError(f"model file {file}: tensor {name!r} is {dtype!r}; allowed: {allowed}")
    if stop - start != math.prod(shape) * _SIZES[dtype]:
        raise _damaged(file, f"tensor {name!r} has {stop - start} bytes for shape {shape}")
    return Place(file, dtype, tuple(shape), base + start, base + stop)


def read_tensor(place: Place) -> Array:
    """The tensor in float32 (bfloat16 and float16 exactly, float64 rounded)."""
    with place.file.open("rb") as data:
        data.seek(place.start)
        raw = data.read(place.stop - place.start)
    if len(raw) != place.stop - place.start:
        raise _damaged(place.file, "it became shorter while it was read")
    if place.dtype == "BF16":
        halves = np.frombuffer(raw, "<u2").astype("<u4")
        return (halves << 16).view("<f4").reshape(place.shape)
    kind = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}[place.dtype]
    return np.frombuffer(raw, kind).astype(np.float32).reshape(place.shape)


def _damaged(file: Path, what: str) -> UsageError:
    return UsageError(f"model file {file}: damaged: {what}")
