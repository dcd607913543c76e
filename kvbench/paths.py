"""Paths as a user writes them."""

from __future__ import annotations

import stat
from pathlib import Path

from kvbench.errors import UsageError


def expanded(text: str | Path) -> Path:
    """The path with ``~`` and ``~user`` replaced. Raises UsageError if no such home is known."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(f"{text}: no home directory is known for it; write it out") from None


def refuse_device(path: Path) -> None:
    """Raise UsageError for a device such as /dev/zero, which has no end to read to."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # whoever reads it says why it cannot
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise UsageError(f"{path}: a device, not a file")
