"""The happens-before check: is every pair of conflicting accesses ordered, by luck or by a wait?

Each queue and the host carry a vector clock (Fidge 1988; Mattern 1989). An access happened before
another if the other's clock already covers it. Work on a queue also follows whatever the host knew
when it issued that work. One pass over the log finds each conflicting pair of byte ranges that no
chain of records, waits and synchronizes orders, whether or not it corrupted anything this time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from kvbench.device.memory import Buffer, Span
from kvbench.device.oplog import Entry, OpLog

HOST = "host"
Clock = dict[str, int]
Access = tuple[str, int, Entry]
"""(queue, tick on that queue, the entry that made the access)."""


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses to the same bytes that nothing orders."""

    hazard: str
    """"read after write", "write after read", "write after write", "use after free" ..."""
    buffer: str
    start: int
    stop: int
    first: Entry
    second: Entry

    def describe(self) -> str:
        """What conflicts, where, and the edge that is missing."""
        first, second = _who(self.first), _who(self.second)
        if self.hazard == "use after free":
            return (
                f"use after free: {second} touches {self.buffer}[{self.start}:{self.stop}] "
                f"after {first}; keep the memory until that work has passed"
            )
        if self.hazard == "never recorded":
            return (
                f"never recorded: {second} waits for {self.second.label!r}, which no queue "
                f"has recorded; the wait does nothing (H21)"
            )
        edge = (
            f"the host must wait for {self.first.queue} first"
            if self.second.queue == HOST
            else f"{self.second.queue} must wait for a record made on {self.first.queue} after it"
        )
        return (
            f"{self.hazard}: {second} and {first} meet in "
            f"{self.buffer}[{self.start}:{self.stop}] unordered; missing edge: {edge}"
        )

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """Races of one cause share it."""
        return (self.hazard, self.first.queue, self.first.site, self.second.queue, self.second.site)


def _who(entry: Entry) -> str:
    place = f", split {entry.split}" if entry.split >= 0 else ""
    place += f", slot {entry.slot}" if entry.slot >= 0 else ""
    return f"{entry.label!r} (on {entry.queue}{place})"


@dataclass(slots=True)
class _Segment:
    """Bytes of one buffer with the same history: the last write, and the reads since."""

    write: Access | None
    reads: dict[str, Access]


class _Shadow:
    """The history of one buffer's bytes as consecutive segments."""

    def __init__(self, buffer: Buffer) -> None:
        self.name = buffer.name
        self.starts = [0]
        self.segments = [_Segment(None, {})]
        self.end = buffer.nbytes
        self.freed: Entry | None = None

    def cut(self, at: int) -> int:
        """Index of the segment that begins at ``at``, split off if need be."""
        if at >= self.end:
            return len(self.starts)
        i = bisect_left(self.starts, at)
        if i < len(self.starts) and self.starts[i] == at:
            return i
        old = self.segments[i - 1]
        self.starts.insert(i, at)
        self.segments.insert(i, _Segment(old.write, dict(old.reads)))
        return i

    def bounds(self, i: int) -> tuple[int, int]:
        """Byte range of segment ``i``."""
        return self.starts[i], self.starts[i + 1] if i + 1 < len(self.starts) else self.end


@dataclass(slots=True)
class Checker:
    """Feeds on log entries in issue order and collects races, at most ``limit`` of each cause."""

    limit: int = 3
    races: list[Race] = field(default_factory=list)
    counts: dict[tuple[str, str, str, str, str], int] = field(default_factory=dict)
    _clocks: dict[str, Clock] = field(default_factory=lambda: {HOST: {HOST: 0}})
    _records: dict[int, Clock] = field(default_factory=dict)
    _launches: dict[int, Clock] = field(default_factory=dict)
    _begun: dict[str, int] = field(default_factory=dict)
    _shadows: dict[int, _Shadow] = field(default_factory=dict)

    def run(self, log: OpLog) -> list[Race]:
        """All races of a log."""
        for entry in log.entries:
            self.feed(entry)
        return self.races

    def feed(self, entry: Entry) -> None:
        """Advance by one entry."""
        kind = entry.kind
        if kind == "mark":
            return
        clock = self._clock(entry)
        if kind == "op":
            join(clock, self._clocks[HOST])
            self._access(entry, clock)
        elif kind == "record":
            join(clock, self._clocks[HOST])
            self._records[entry.record] = dict(clock)
        elif kind == "wait":
            self._bind(entry, clock)
        elif kind == "sync":
            queue = entry.tags.get("queue")
            if queue is not None:
                join(clock, self._clocks.get(queue, {}))
            else:
                self._bind(entry, clock)
        elif kind == "launch":
            join(clock, self._clocks[HOST])
            self._launches[entry.graph] = dict(clock)
        else:  # host, alloc, free
            self._access(entry, clock)
            if kind == "free":
                self._shadow(entry.writes[0].buffer).freed = entry

    def _clock(self, entry: Entry) -> Clock:
        clock = self._clocks.setdefault(entry.queue, {entry.queue: 0})
        if entry.graph and self._begun.get(entry.queue) != entry.graph:
            self._begun[entry.queue] = entry.graph
            join(clock, self._launches.get(entry.graph, {}))
        return clock

    def _bind(self, entry: Entry, clock: Clock) -> None:
        known = self._records.get(entry.record)
        if known is None:
            self._report(Race("never recorded", "", 0, 0, entry, entry))
        else:
            join(clock, known)

    def _shadow(self, buffer: Buffer) -> _Shadow:
        shadow = self._shadows.get(buffer.id)
        if shadow is None:
            shadow = self._shadows[buffer.id] = _Shadow(buffer)
        return shadow

    def _access(self, entry: Entry, clock: Clock) -> None:
        tick = clock[entry.queue] = clock.get(entry.queue, 0) + 1
        me: Access = (entry.queue, tick, entry)
        for span in entry.reads:
            for lo, hi in _ranges(span):
                self._read(span.buffer, lo, hi, me, clock)
        for span in entry.writes:
            for lo, hi in _ranges(span):
                self._write(span.buffer, lo, hi, me, clock)

    def _read(self, buffer: Buffer, lo: int, hi: int, me: Access, clock: Clock) -> None:
        shadow = self._live(buffer, lo, hi, me)
        first, last = shadow.cut(lo), shadow.cut(hi)
        for i in range(first, last):
            segment = shadow.segments[i]
            self._require("read after write", segment.write, me, clock, shadow, i)
            segment.reads[me[0]] = me

    def _write(self, buffer: Buffer, lo: int, hi: int, me: Access, clock: Clock) -> None:
        shadow = self._live(buffer, lo, hi, me)
        first, last = shadow.cut(lo), shadow.cut(hi)
        for i in range(first, last):
            segment = shadow.segments[i]
            self._require("write after write", segment.write, me, clock, shadow, i)
            for read in segment.reads.values():
                if read[2] is not me[2]:
                    self._require("write after read", read, me, clock, shadow, i)
        if first < last:
            shadow.starts[first:last] = [lo]
            shadow.segments[first:last] = [_Segment(me, {})]

    def _live(self, buffer: Buffer, lo: int, hi: int, me: Access) -> _Shadow:
        shadow = self._shadow(buffer)
        if shadow.freed is not None:
            self._report(Race("use after free", shadow.name, lo, hi, shadow.freed, me[2]))
        return shadow

    def _require(
        self,
        hazard: str,
        earlier: Access | None,
        me: Access,
        clock: Clock,
        shadow: _Shadow,
        segment: int,
    ) -> None:
        if earlier is None:
            return
        self._meet(earlier, me)
        if clock.get(earlier[0], 0) >= earlier[1]:
            return
        start, stop = shadow.bounds(segment)
        self._report(Race(hazard, shadow.name, start, stop, earlier[2], me[2]))

    def _meet(self, earlier: Access, me: Access) -> None:
        """Two accesses conflict, ordered or not."""

    def _report(self, race: Race) -> None:
        seen = self.counts[race.key] = self.counts.get(race.key, 0) + 1
        if seen <= self.limit:
            self.races.append(race)


def join(clock: Clock, other: Clock) -> None:
    """``clock`` learns what ``other`` knows."""
    for queue, tick in other.items():
        if tick > clock.get(queue, 0):
            clock[queue] = tick


def _ranges(span: Span) -> Iterator[tuple[int, int]]:
    if span.length == 0:
        return
    for i in range(span.count):
        start = span.offset + i * span.pitch
        yield start, start + span.length


def check(log: OpLog, *, limit: int = 3) -> list[Race]:
    """Races of a recorded run, at most ``limit`` for each pair of sites on each pair of queues."""
    return Checker(limit).run(log)
