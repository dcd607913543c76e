"""Small readers of /proc and /sys; a file that is not there is None, never an error."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")


def read(path: str, root: Path = ROOT) -> str | None:
    """The stripped text of a pseudo-file, or None where this machine does not have it."""
    try:
        return (root / path.lstrip("/")).read_text(errors="replace").strip()
    except OSError:
        return None


def read_int(path: str, root: Path = ROOT) -> int | None:
    """The whole number in a pseudo-file, or None."""
    text = read(path, root)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def selected(text: str | None) -> str | None:
    """The bracketed choice of ``always [madvise] never``."""
    if text is None or "[" not in text:
        return text
    return text.partition("[")[2].partition("]")[0]


def field(text: str | None, name: str) -> str | None:
    """The value of the first ``name : value`` line."""
    for line in (text or "").splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == name:
            return value.strip()
    return None
