"""The journal: append-only, fsync-ed before the next run starts, one writer at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kvbench.errors import UsageError
from kvbench.records.lines import (
    MAX_LINE_BYTES,
    DamagedLineError,
    Line,
    RunLine,
    decode_line,
    encode_line,
)
from kvbench.records.result import Result

JOURNAL_NAME = "journal.jsonl"
DETAILS_NAME = "details"
_HEAVY = ("telemetry", "counters", "waits", "memory", "metrics")
"""Fields of a result that may move to a side file; what is judged (hashes, bytes) stays."""


@dataclass(frozen=True)
class JournalContent:
    """What a journal holds: its good lines, and the torn last line if there is one."""

    lines: tuple[Line, ...]
    good_bytes: int
    """Length of the readable part; a writer truncates to it."""
    torn: str | None
    """Why the last line was dropped, or None."""


def read_journal(path: Path) -> JournalContent:
    """Read every line of the journal at ``path`` (its file, or the directory that holds it).

    Only the last line may be torn (a crash in mid-append); it is dropped and reported. Damage
    before it raises ``UsageError`` with the line's number: evidence is not silently thinned.
    """
    file = path / JOURNAL_NAME if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file}: no journal can be read: {error.strerror}") from error
    lines: list[Line] = []
    good = 0
    for number, (raw, terminated) in enumerate(_split(data), 1):
        last = good + len(raw) + terminated == len(data)
        try:
            if not terminated:
                raise DamagedLineError("the line has no end")
            lines.append(decode_line(raw))
        except DamagedLineError as error:
            if last:
                return JournalContent(tuple(lines), good, f"line {number} dropped: {error}")
            raise UsageError(f"{file}: line {number} is damaged: {error}") from error
        good += len(raw) + 1
    return JournalContent(tuple(lines), good, None)


def _split(data: bytes) -> Iterator[tuple[bytes, bool]]:
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        if end < 0:
            yield data[start:], False
            return
        yield data[start:end], True
        start = end + 1


class Journal:
    """Writer of one experiment's journal. Holds the directory's lock until closed.

    Every ``append`` returns only after the line is on disk. If an append fails half-way (full
    disk), the file is cut back to its last whole line before the error is raised.
    """

    def __init__(self, directory: Path) -> None:
        """Open or create the journal in ``directory``; a torn last line is cut (see ``torn``)."""
        self.directory = directory
        self.path = directory / JOURNAL_NAME
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(directory / "lock")
        try:
            self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self) -> None:
        existing = self.path.exists()
        content = read_journal(self.path) if existing else JournalContent((), 0, None)
        self.lines: list[Line] = list(content.lines)
        self.torn = content.torn
        self._end = content.good_bytes
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if content.torn is not None:
            os.ftruncate(self._file, self._end)
            os.fsync(self._file)
        if not existing:
            sync_directory(self.directory)

    def append(self, line: Line) -> None:
        """Write ``line`` and wait until it is on disk. What does not fit goes to a side file."""
        if isinstance(line, RunLine):
            line = self._fit(line)
        data = encode_line(line) + b"\n"
        try:
            _write_all(self._file, data, self._end)
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, self._end)
            raise UsageError(f"{self.path}: cannot append: {error.strerror}") from error
        self._end += len(data)
        self.lines.append(line)

    def store_details(self, content: Any) -> str:
        """Store JSON-able ``content`` as details/<hash>.json, durably; return the hash."""
        data = msgspec.json.encode(content, order="sorted")
        digest = hashlib.sha256(data).hexdigest()[:32]
        folder = self.directory / DETAILS_NAME
        folder.mkdir(exist_ok=True)
        write_durably(folder / f"{digest}.json", data)
        return digest

    def _fit(self, line: RunLine) -> RunLine:
        if line.result is None or len(msgspec.json.encode(line)) + 80 < MAX_LINE_BYTES:
            return line
        moved: dict[str, Any] = {}
        result = line.result
        for field in _HEAVY:
            moved[field] = getattr(result, field)
            result = msgspec.structs.replace(result, **{field: {}})
            slim = msgspec.structs.replace(line, result=result, details="0" * 32)
            if len(msgspec.json.encode(slim)) + 80 < MAX_LINE_BYTES:
                break
        return msgspec.structs.replace(line, result=result, details=self.store_details(moved))

    def close(self) -> None:
        """Release the file and the lock."""
        os.close(self._file)
        os.close(self._lock)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def full_result(line: RunLine, directory: Path) -> Result | None:
    """The line's result with the fields of its side file put back."""
    if line.result is None or line.details is None:
        return line.result
    path = directory / DETAILS_NAME / f"{line.details}.json"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: the details of a run are missing: {error.strerror}") from error
    if hashlib.sha256(data).hexdigest()[:32] != line.details:
        raise UsageError(f"{path}: the details of a run are damaged: their hash does not match")
    merged = {**msgspec.to_builtins(line.result), **msgspec.json.decode(data)}
    return msgspec.convert(merged, Result)


def write_durably(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` so that a crash leaves either the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"{path}: cannot write: {error.strerror}") from error
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make a new name in directory ``path`` durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_all(file: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def _lock(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(handle, 32, 0).decode(errors="replace").strip()
        os.close(handle)
        raise UsageError(
            f"{path.parent}: another kvbench (process {owner or 'unknown'}) writes here; "
            "wait for it, or choose another directory with --out"
        ) from error
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return handle
