"""SHA-256 of large files, remembered so that each run does not read the file to know its name.

A remembered digest is used only while path, inode, size, mtime and ctime are all unchanged. A
write or a replacement changes at least ctime, which programs cannot set; and a digest is only
remembered once the file has been left alone for longer than any clock's granularity, so a write
within the same tick as the reading cannot hide. What remains is a disk that lies.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from pathlib import Path

from kvbench.assets.cache import cache_root

SETTLED_S = 3.0


def file_digest(file: Path) -> str:
    """SHA-256 of a file, in hex."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def remembered_digest(path: Path) -> str:
    """SHA-256 (hex) of ``path``, read only if it is new or has changed."""
    before = path.stat()
    note = cache_root() / "digests" / _key(path, before)
    try:
        text = note.read_text(encoding="ascii")
        if re.fullmatch("[0-9a-f]{64}", text):
            return text
    except (OSError, UnicodeDecodeError):
        pass  # not remembered yet, or unreadable: computed anew either way
    digest = file_digest(path)
    changed = max(before.st_mtime, before.st_ctime)
    if _key(path, path.stat()) == note.name and time.time() - changed > SETTLED_S:
        _remember(note, digest)
    return digest


def _key(path: Path, stat: os.stat_result) -> str:
    facts = (path.resolve(), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _remember(note: Path, digest: str) -> None:
    """Written whole or not at all; failing to remember costs time and nothing else."""
    temporary = note.with_name(f".{note.name}-{os.getpid()}")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(digest, encoding="ascii")
        temporary.replace(note)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
