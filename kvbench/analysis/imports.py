"""Captures from files: nsys exports and stored captures, told apart by their content."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvbench.analysis.nsys import read_nsys
from kvbench.errors import UsageError
from kvbench.records.capture import Capture, decode_capture


def read_captures(paths: Sequence[Path], token_count: int | None = None) -> list[Capture]:
    """One capture a file; arms are named after files, numbered where names repeat."""
    captures: list[Capture] = []
    for path in paths:
        capture = _read(path, token_count)
        name, number = capture.arm, 2
        while any(other.arm == name for other in captures):
            name, number = f"{capture.arm}-{number}", number + 1
        captures.append(msgspec.structs.replace(capture, arm=name))
    return captures


def _read(path: Path, token_count: int | None) -> Capture:
    try:
        with path.open("rb") as file:
            first = file.read(1)
    except OSError as error:
        raise UsageError(f"{path}: cannot read: {error.strerror}") from error
    if first != b"{":
        return read_nsys(path, token_count=token_count)
    capture = decode_capture(path.read_bytes(), str(path))
    if token_count is not None:
        capture = msgspec.structs.replace(capture, tokens=token_count)
    return capture
