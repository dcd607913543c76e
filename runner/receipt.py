"""What exactly ran: the part of a record's environment that belongs to an arm."""

from __future__ import annotations

import hashlib
import os
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvbench.engines.arm import Arm
from kvbench.engines.supervisor import ArmRun
from kvbench.environment.fingerprint import CHECKOUT, git_state
from kvbench.environment.privacy import salted_digest, scrub

MUST_NOT_CHANGE = (
    "name",
    "engine",
    "model",
    "settings",
    "command",
    "variables",
    "program_sha256",
    "files",
    "revision",
    "version",
    "receipt",
)
"""Fields of an arm's receipt that stay the same over all its runs in one experiment."""
WHOLE_BYTES = 64 << 20
"""Files of an arm's command up to this size are hashed whole; of larger ones (models), size, first
and last MiB."""
MAX_NAME = 4096


def before_start(arm: Arm) -> dict[str, Any]:
    """What is known without starting the arm. Values of environment variables are not stored."""
    program = program_path(arm) if arm.command else None
    found = {
        "name": arm.name,
        "engine": arm.engine,
        "model": arm.model,
        "settings": arm.settings,
        "command": arm.argv(),
        "variables": {name: salted_digest(value) for name, value in arm.env.items()},
        "program_sha256": None if program is None else _file_digest(Path(program)),
        "files": _files(arm),
        "revision": _revision(arm, program),
    }
    scrubbed: dict[str, Any] = scrub(found, CHECKOUT)
    return scrubbed


def after_run(known: dict[str, Any], run: ArmRun) -> dict[str, Any]:
    """The same with what the running arm said of itself."""
    hello, ready = run.hello, run.ready
    said = {
        "version": (ready.version if ready and ready.version else hello.version if hello else ""),
        "receipt": {**(hello.receipt if hello else {}), **(ready.receipt if ready else {})},
        "effective": ready.effective if ready else {},
        "notes": list(ready.notes) if ready else [],
    }
    scrubbed: dict[str, Any] = {**known, **scrub(said, CHECKOUT)}
    return scrubbed


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Fields in which two receipts of one arm differ though they must not."""
    known = (name for name in MUST_NOT_CHANGE if name in before)  # older records know less
    return [name for name in known if before[name] != after.get(name)]


def program_path(arm: Arm) -> str | None:
    """The arm's program as its process will find it: a path is relative to the arm's cwd."""
    name = arm.argv()[0]
    if "/" in name:
        return shutil.which(Path(arm.cwd or ".") / name)
    return shutil.which(name, path=arm.environ().get("PATH"))


def _files(arm: Arm) -> list[str]:
    """Path and digest of each file that the arm's arguments name: scripts, models, settings."""
    found = []
    for argument in arm.argv()[1:] if arm.command else ():
        for name in (argument, argument.partition("=")[2]):
            path = Path(arm.cwd or ".") / name
            if name and len(name) < MAX_NAME and path.is_file():
                found.append(f"{name} {_file_digest(path)}")
    return found


def _revision(arm: Arm, program: str | None) -> str | None:
    """Of the repository that the arm names by its cwd, or else its program lies in."""
    if arm.cwd is not None:
        return git_state(Path(arm.cwd))
    return None if program is None else git_state(Path(program).resolve().parent)


def _file_digest(path: Path) -> str | None:
    """Hashed again only if the file changed: a program may be rebuilt between two blocks."""
    try:
        stat = path.stat()
        return _digest_of(path, stat.st_mtime_ns, stat.st_size, stat.st_ino)
    except OSError:
        return None


@lru_cache(maxsize=64)
def _digest_of(path: Path, _mtime_ns: int, size: int, _inode: int) -> str:
    with path.open("rb") as file:
        if size <= WHOLE_BYTES:
            return hashlib.file_digest(file, "sha256").hexdigest()
        ends = file.read(1 << 20)
        file.seek(-(1 << 20), os.SEEK_END)
        ends += file.read()
        return f"{size} bytes, ends {hashlib.sha256(ends).hexdigest()}"
