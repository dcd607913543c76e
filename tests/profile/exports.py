"""Files as ``nsys export --type sqlite`` writes them, with the columns that matter."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

SCHEMA = {
    "StringIds": "id INTEGER, value TEXT",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INT, end INT, eventClass INT, globalTid INT, "
    "correlationId INT, nameId INT, returnValue INT, callchainId INT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INT, end INT, deviceId INT, contextId INT, streamId INT, "
    "correlationId INT, globalPid INT, bytes INT, copyKind INT, srcKind INT, dstKind INT, "
    "graphNodeId INT",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INT, end INT, deviceId INT, contextId INT, streamId INT, "
    "correlationId INT, globalPid INT, demangledName INT, shortName INT, graphNodeId INT",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INT, end INT, deviceId INT, streamId INT, "
    "graphId INT",
    "NVTX_EVENTS": "start INT, end INT, eventType INT, rangeId INT, category INT, color INT, "
    "text TEXT, globalTid INT, endGlobalTid INT, textId INT, domainId INT",
}
STRINGS = {
    1: "cudaStreamSynchronize_v3020",
    2: "cudaGraphLaunch_v10000",
    3: "cudaMemcpyAsync_v3020",
    4: "attend",
    5: "token",
}


class Export:
    """A file under construction; tables are created when first written to, as nsys does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = sqlite3.connect(path)
        self._made: set[str] = set()
        self.add("StringIds", *STRINGS.items())
        self.add("META_DATA_EXPORT", ("EXPORT_SCHEMA_VERSION", "3.11.0"))

    def add(self, table: str, *rows: Sequence[object], drop: str = "") -> None:
        """Append rows given as the schema's first columns; ``drop`` leaves a column out."""
        columns = [c for c in SCHEMA[table].split(", ") if c.split()[0] != drop]
        if table not in self._made:
            quoted = ", ".join(f'"{c.split()[0]}" {c.split()[1]}' for c in columns)
            self.file.execute(f"CREATE TABLE {table} ({quoted})")
            self._made.add(table)
        for row in rows:
            values = [*row, *[None] * (len(columns) - len(row))]
            marks = ", ".join("?" * len(columns))
            self.file.execute(f"INSERT INTO {table} VALUES ({marks})", values)

    def calls(self, name_id: int, count: int, ns: int = 1000, start: int = 0) -> None:
        """``count`` calls of one API, one after the other."""
        rows = [
            (start + i * 2000, start + i * 2000 + ns, 0, 7 << 24 | 42, i, name_id)
            for i in range(count)
        ]
        self.add("CUPTI_ACTIVITY_KIND_RUNTIME", *rows)

    def tokens(self, count: int, ns: int = 100_000) -> None:
        """``count`` push/pop ranges named by a string id."""
        rows = [
            (i * ns, (i + 1) * ns, 59, None, None, None, None, 42, None, 5) for i in range(count)
        ]
        self.add("NVTX_EVENTS", *rows)

    def save(self) -> Path:
        """Close the file; return its path."""
        self.file.commit()
        self.file.close()
        return self.path


def origin(path: Path, syncs: int, launches: int, copies: int) -> Path:
    """An export with as many API calls as one arm of the origin's capture."""
    export = Export(path)
    for name_id, count in ((1, syncs), (2, launches), (3, copies)):
        export.calls(name_id, count)
    return export.save()
