"""Which waits of a recorded run nobody needed, by the happens-before check's own clocks.

A wait is needed if it is the first to put the host behind some work that the host, or work on
another queue that has no other edge to it, then conflicts with. All others could have been left
out without making a race. It is the independent proof of the counts that the context keeps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvbench.device.oplog import Entry
from kvbench.device.races import HOST, Access, Checker, Clock, join


@dataclass(slots=True)
class _Needs(Checker):
    """Follows a log and remembers which waits were the first to order something."""

    needed: set[int] = field(default_factory=set)
    """Identities of the sync entries that were needed."""
    _raised: dict[str, list[tuple[int, Entry]]] = field(default_factory=lambda: defaultdict(list))
    """By queue: how far the host got behind it, and by which wait."""
    _edges: dict[str, Clock] = field(default_factory=dict)
    """Each queue's knowledge through events alone, the host left out."""
    _points: dict[int, Clock] = field(default_factory=dict)

    def feed(self, entry: Entry) -> None:
        before = dict(self._clocks[HOST])
        if entry.queue != HOST:
            self._through_events(entry)
        Checker.feed(self, entry)
        if entry.kind == "sync":
            for queue, tick in self._clocks[HOST].items():
                if tick > before.get(queue, 0):
                    self._raised[queue].append((tick, entry))

    def _through_events(self, entry: Entry) -> None:
        known = self._edges.setdefault(entry.queue, {})
        if entry.graph:
            join(known, self._points.get(-entry.graph, {}))
        if entry.kind == "op":
            own = self._clocks.get(entry.queue, {})
            known[entry.queue] = own.get(entry.queue, 0) + 1
        elif entry.kind == "record":
            self._points[entry.record] = dict(known)
        elif entry.kind == "wait":
            join(known, self._points.get(entry.record, {}))
        elif entry.kind == "launch":
            self._points[-entry.graph] = dict(known)

    def _meet(self, earlier: Access, me: Access) -> None:
        queue, tick, _ = earlier
        if queue in (HOST, me[0]):
            return
        if me[0] == HOST or self._edges[me[0]].get(queue, 0) < tick:
            self._credit(queue, tick)

    def _credit(self, queue: str, tick: int) -> None:
        steps = self._raised[queue]
        first = bisect_left(steps, tick, key=lambda step: step[0])
        if first < len(steps):
            self.needed.add(id(steps[first][1]))


def needless(entries: Iterable[Entry], *, after: str = "", until: str = "") -> Counter[str]:
    """Waits by site that a run could do without, between the marks ``after`` and ``until``.

    Without marks the whole log counts; what comes before ``after`` is followed all the same.
    """
    check, counted, waits = _Needs(), not after, []
    for entry in entries:
        if entry.kind == "mark":
            counted = counted or entry.label == after
            if until and entry.label == until:
                break
        check.feed(entry)
        if counted and entry.kind == "sync":
            waits.append(entry)
    return Counter(entry.site for entry in waits if id(entry) not in check.needed)
