"""Paths as a user writes them."""

from __future__ import annotations

from pathlib import Path

from kvbench.errors import UsageError


def expanded(text: str | Path) -> Path:
    """The path with ``~`` and ``~user`` replaced. Raises UsageError if no such home is known."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(f"{text}: no home directory is known for it; write it out") from None
