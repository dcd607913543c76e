"""What ``kvbench clean`` may remove: entries of the cache, and finished experiments."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvbench.assets.cache import cache_root
from kvbench.errors import UsageError

DAY_S = 86_400.0


class Item(NamedTuple):
    """Something that can be deleted as a whole."""

    path: Path
    bytes: int
    used: float
    """Unix seconds of its latest change."""


def select(
    caches: bool, results: Path | None, older_than_days: float | None, down_to: int | None
) -> list[Item]:
    """What would go, oldest first.

    Without limits: everything asked for. ``down_to``: oldest first until so many bytes are left.
    """
    items = sorted(_items(caches, results), key=lambda item: item.used)
    if older_than_days is None and down_to is None:
        return items
    chosen = []
    left = sum(item.bytes for item in items)
    limit = time.time() - (older_than_days or 0) * DAY_S
    for item in items:
        old = older_than_days is not None and item.used < limit
        if old or (down_to is not None and left > down_to):
            chosen.append(item)
            left -= item.bytes
    return chosen


def delete(items: list[Item]) -> None:
    """Delete each item; an experiment that someone writes to meanwhile stays."""
    for item in items:
        try:
            if item.path.is_dir():
                shutil.rmtree(item.path)
            else:
                item.path.unlink()
        except OSError as error:
            raise UsageError(f"{item.path}: cannot be removed: {error.strerror}") from error


def _items(caches: bool, results: Path | None) -> Iterator[Item]:
    if caches:
        root = cache_root()
        areas = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
        for area in areas:
            for entry in sorted(area.iterdir()):
                if not entry.name.startswith("."):
                    yield _item(entry)
    if results is not None:
        if not results.is_dir():
            raise UsageError(f"{results}: not a directory")
        for plan in sorted(results.glob("*/plan.json")):
            if not _is_locked(plan.parent):
                yield _item(plan.parent)


def _item(path: Path) -> Item:
    files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    stats = [file.lstat() for file in files] or [path.lstat()]
    return Item(path, sum(stat.st_size for stat in stats), max(stat.st_mtime for stat in stats))


def _is_locked(directory: Path) -> bool:
    try:
        handle = os.open(directory / "lock", os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
