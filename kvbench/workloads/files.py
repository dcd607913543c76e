"""A user's files: what may be read, and how each kind of damage is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kvbench.errors import UsageError

MAX_BYTES = 1 << 30


class Identity(NamedTuple):
    """What a cached reading belongs to."""

    path: Path
    mtime_ns: int
    size: int


def identify(path: Path) -> Identity:
    """The file as it is now. Raises UsageError unless it is a regular file of at most 1 GiB."""
    try:
        stat = path.stat()
    except OSError as error:
        raise UsageError(f"workload {path}: {error.strerror}") from None
    if not path.is_file():
        raise UsageError(f"workload {path}: not a regular file")
    if stat.st_size > MAX_BYTES:
        raise UsageError(f"workload {path}: {stat.st_size / 1e9:.1f} GB; at most 1 GiB is allowed")
    return Identity(path.resolve(), stat.st_mtime_ns, stat.st_size)


def read_text(path: Path) -> str:
    """The whole text, UTF-8. Raises UsageError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"workload {path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise UsageError(f"workload {path}: {error.strerror}") from None


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Each line that is not blank: where it stands, and its value. Raises UsageError."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"workload {path}, line {number}"
        try:
            yield where, json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise UsageError(f"{where}: not JSON: {error}") from None
