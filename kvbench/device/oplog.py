"""The op log: every operation of a run, in the order in which the host issued it.

Issue order is a topological order of what must happen: a wait can only name a record that was
made before it. So one pass over the log is enough for the happens-before check (races.py), for
structure checks (T6) and for timelines.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from kvbench.device.memory import Span

EntryKind = Literal["op", "record", "wait", "launch", "sync", "host", "alloc", "free", "mark"]


@dataclass(slots=True)
class Entry:
    """One line of the log. ``start``/``end`` are seconds on the device's clock, 0 if unknown."""

    kind: EntryKind
    queue: str
    label: str
    site: str = ""
    reads: tuple[Span, ...] = ()
    writes: tuple[Span, ...] = ()
    record: int = 0
    """Id of the record made (record), or bound (wait, sync); 0 binds nothing (H21)."""
    split: int = -1
    slot: int = -1
    nbytes: int = 0
    graph: int = 0
    """Launch number when the entry came from a captured graph, else 0."""
    issued: float = 0.0
    """Seconds on the log's clock when the host made the call."""
    start: float = 0.0
    end: float = 0.0
    tags: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class OpLog:
    """An append-only list of entries, shared by all devices of a run."""

    entries: list[Entry] = field(default_factory=list)
    clock: Callable[[], float] = time.perf_counter
    """Seconds; the clock on which the executor stamps ``start`` and ``end``."""

    def add(self, entry: Entry) -> Entry:
        """Append ``entry`` and return it, so that the executor can stamp its times."""
        entry.issued = self.clock()
        self.entries.append(entry)
        return entry

    def mark(self, label: str, **tags: Any) -> None:
        """Note a point in host time (a token's start, a phase) without ordering anything."""
        self.add(Entry("mark", "host", label, tags=tags))

    def ops(self, site: str | None = None) -> list[Entry]:
        """The operations of the log, all or those of one site."""
        return [e for e in self.entries if e.kind == "op" and (site is None or e.site == site)]
