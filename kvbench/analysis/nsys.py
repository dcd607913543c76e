"""Read the sqlite export of Nsight Systems (``nsys export --type sqlite``), from any program.

Tables are created lazily by nsys: one that is not there was not traced or never happened, which
is not zero calls. What cannot be read is named in ``Capture.absent``; only a file from which
nothing can be read is refused.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from kvbench.errors import UsageError
from kvbench.records.capture import (
    CAPTURE_VERSION,
    COPY_KINDS,
    TOKEN,
    ApiCall,
    Capture,
    NamedRange,
    Work,
    api_name,
)

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
NVTX = "NVTX_EVENTS"

T = TypeVar("T")

_MAGIC = b"SQLite format 3\0"
_RANGES = (59, 60)
"""NVTX event types with a start and an end: push/pop, and start/end."""


def read_nsys(path: Path, arm: str = "", token_count: int | None = None) -> Capture:
    """The capture in ``path``. Raises ``UsageError`` if the file is not an nsys export at all.

    ``token_count``: tokens generated inside, if the caller knows; else the NVTX ranges named
    "token" are counted.
    """
    _check_magic(path)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as file:
            return _Reader(file, path).capture(arm or path.stem, token_count)
    except sqlite3.DatabaseError as error:
        raise UsageError(f"{path}: damaged sqlite file: {error}") from error


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise UsageError(f"{path}: cannot read: {error.strerror}") from error
    if magic != _MAGIC:
        hint = "; export it first: nsys export --type sqlite" if path.suffix == ".nsys-rep" else ""
        raise UsageError(f"{path}: not a sqlite file{hint}")


class _Reader:
    """One open export. ``absent`` collects what it does not hold."""

    def __init__(self, file: sqlite3.Connection, path: Path) -> None:
        self.file, self.path = file, path
        self.absent: dict[str, str] = {}
        self.columns = {
            name: {row[1] for row in file.execute(f"PRAGMA table_info({_quoted(name)})")}
            for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if "StringIds" not in self.columns or not {"id", "value"} <= self.columns["StringIds"]:
            there = ", ".join(sorted(self.columns)[:8]) or "none"
            raise UsageError(
                f"{path}: not an nsys export: no table StringIds(id, value); tables there: {there}"
            )
        self.strings: dict[int, str] = dict(file.execute("SELECT id, value FROM StringIds"))

    def capture(self, arm: str, token_count: int | None) -> Capture:
        api = self._read("api", RUNTIME, ("start", "end", "nameId"), self._api)
        kernels = self._read("kernels", KERNEL, ("start", "end"), self._kernel)
        copies = self._read("copies", MEMCPY, ("start", "end", "bytes", "copyKind"), self._copy)
        memsets = self._read("memsets", MEMSET, ("start", "end"), self._memset)
        graphs = self._graphs()
        ranges = self._read("ranges", NVTX, ("start", "end", "eventType"), self._range)
        if not (api or kernels or copies or ranges):
            reasons = "; ".join(f"{what}: {why}" for what, why in self.absent.items())
            raise UsageError(f"{self.path}: nothing in it can be read: {reasons}")
        if token_count is None:
            token_count = sum(r.name == TOKEN for r in ranges) or None
        work = sorted((*kernels, *copies, *memsets, *graphs), key=lambda w: (w.start, w.end))
        return Capture(
            v=CAPTURE_VERSION,
            arm=arm,
            source="nsys",
            tool=self._version(),
            tokens=token_count,
            api=tuple(sorted(api, key=lambda c: c.start)),
            work=tuple(work),
            ranges=tuple(sorted(ranges, key=lambda r: r.start)),
            absent=self.absent,
        )

    def _read(
        self,
        what: str,
        table: str,
        needed: tuple[str, ...],
        build: Callable[[dict[str, Any]], T | None],
    ) -> list[T]:
        """Rows of ``table`` that ``build`` makes something of; [] with a reason if unreadable."""
        if table not in self.columns:
            self.absent[what] = f"no table {table}: not traced, or none happened"
            return []
        missing = [column for column in needed if column not in self.columns[table]]
        if missing:
            self.absent[what] = f"table {table} has no column {', '.join(missing)}"
            return []
        try:
            return [made for row in self._rows(table) if (made := build(row)) is not None]
        except (TypeError, ValueError) as error:
            self.absent[what] = f"table {table} holds a value that cannot be read: {error}"
            return []

    def _rows(self, table: str) -> Iterator[dict[str, Any]]:
        cursor = self.file.execute(f"SELECT * FROM {_quoted(table)}")
        names = [column[0] for column in cursor.description]
        for row in cursor:
            yield dict(zip(names, row, strict=True))

    def _string(self, key: object) -> str:
        return self.strings.get(key, f"string {key}") if isinstance(key, int) else ""

    def _api(self, row: dict[str, Any]) -> ApiCall:
        return ApiCall(
            name=api_name(self._string(row["nameId"])),
            start=int(row["start"]),
            end=int(row["end"]),
            thread=int(row.get("globalTid") or 0) & 0xFFFFFF,
            correlation=int(row.get("correlationId") or 0),
        )

    def _kernel(self, row: dict[str, Any]) -> Work:
        name = row.get("shortName") or row.get("demangledName")
        return self._work(row, "kernel", self._string(name) or "kernel")

    def _copy(self, row: dict[str, Any]) -> Work:
        direction = COPY_KINDS.get(int(row["copyKind"]), f"kind {row['copyKind']}")
        return self._work(row, "copy", direction, int(row["bytes"]), direction)

    def _memset(self, row: dict[str, Any]) -> Work:
        return self._work(row, "memset", "memset", int(row.get("bytes") or 0))

    def _graphs(self) -> list[Work]:
        """Graph launches as wholes: there only if nodes were not traced one by one."""
        if GRAPHS not in self.columns:
            return []
        found = self._read(
            "graph launches", GRAPHS, ("start", "end"), lambda r: self._work(r, "graph", "graph")
        )
        if found:
            self.absent["graph nodes"] = (
                f"{len(found)} graph launches were traced as wholes; record with "
                "--cuda-graph-trace=node to see their kernels and copies"
            )
        return found

    def _work(
        self, row: dict[str, Any], kind: Any, label: str, nbytes: int = 0, direction: str = ""
    ) -> Work:
        return Work(
            kind=kind,
            queue=f"GPU {row.get('deviceId', 0)} stream {row.get('streamId', 0)}",
            label=label,
            start=int(row["start"]),
            end=int(row["end"]),
            nbytes=nbytes,
            direction=direction,
            graph=bool(row.get("graphNodeId")),
            correlation=int(row.get("correlationId") or 0),
        )

    def _range(self, row: dict[str, Any]) -> NamedRange | None:
        if row["eventType"] not in _RANGES or row["end"] is None:
            return None
        return NamedRange(
            name=str(row.get("text") or self._string(row.get("textId")) or "unnamed"),
            start=int(row["start"]),
            end=int(row["end"]),
            thread=int(row.get("globalTid") or 0) & 0xFFFFFF,
        )

    def _version(self) -> str:
        table = "META_DATA_EXPORT"
        if not {"name", "value"} <= self.columns.get(table, set()):
            return "nsys (version not recorded)"
        known = dict(self.file.execute(f"SELECT name, value FROM {table}"))
        return f"nsys export schema {known.get('EXPORT_SCHEMA_VERSION', 'unknown')}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
