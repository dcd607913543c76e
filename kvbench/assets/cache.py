"""Directories in the user's cache that are there whole or not at all.

A directory is built under a name that starts with ``.staging-``, flushed to disk, then renamed.
What a killed process leaves is a staging directory, which the next holder of the same lock
removes. The lock is the operating system's, so it ends with the process that held it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from kvbench.errors import AssetError
from kvbench.paths import expanded

LOCK_TIMEOUT_S = 1800.0
"""Longer than any pull that still makes progress; a holder that died holds nothing."""


def cache_root() -> Path:
    """``KVBENCH_CACHE`` if it is set, else the user's cache directory; not created here."""
    override = os.environ.get("KVBENCH_CACHE", "").strip()
    if override:
        return expanded(override).absolute()
    return platformdirs.user_cache_path("kvbench", appauthor=False)


@contextmanager
def locked(area: Path, key: str) -> Iterator[None]:
    """Hold the lock for ``key`` in ``area`` (created if need be), and clear its stale staging.

    Raises AssetError when the lock stays taken, and for every OSError of the body: whatever is
    done under this lock is done to files of the cache.
    """
    import filelock

    with _disk_errors(area):
        area.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(area / f".lock-{key}", timeout=LOCK_TIMEOUT_S)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise AssetError(
                f"{area}: another process has held the lock of {key} for over"
                f" {LOCK_TIMEOUT_S / 60:.0f} minutes; end it and try again"
            ) from None
        try:
            for stale in area.glob(f".staging-{key}-*"):
                shutil.rmtree(stale)
            yield
        finally:
            lock.release()


@contextmanager
def staging(area: Path, key: str) -> Iterator[Path]:
    """An empty directory to build ``key`` in; removed at the end unless it was published."""
    path = Path(tempfile.mkdtemp(prefix=f".staging-{key}-", dir=area))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def publish(built: Path, final: Path) -> None:
    """Flush ``built`` to disk and rename it to ``final``, replacing a damaged one.

    Call it with the lock held. A reader sees the old directory, none for an instant, or the new.
    """
    for directory, _, files in os.walk(built):
        for name in files:
            _flush(Path(directory, name))
        _flush(Path(directory))
    if final.exists():
        shutil.rmtree(final)
    built.rename(final)
    _flush(final.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_space(area: Path, needed: int, what: str) -> None:
    """Raise AssetError unless ``needed`` bytes are free where ``area`` lies."""
    free = shutil.disk_usage(area).free
    if free < needed:
        raise AssetError(
            f"{what} needs {needed / 1e6:.1f} MB in {area}, {free / 1e6:.1f} MB are free:"
            " make room, or set KVBENCH_CACHE to a directory on another disk"
        )


@contextmanager
def _disk_errors(area: Path) -> Iterator[None]:
    """Turn the operating system's errors about files into one AssetError that names the place."""
    try:
        yield
    except OSError as error:
        place = error.filename or area
        reason = error.strerror or str(error)
        raise AssetError(
            f"{place}: {reason} (cache: {cache_root()}; KVBENCH_CACHE moves it)"
        ) from error
