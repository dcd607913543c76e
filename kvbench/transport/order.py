"""Who is known to be behind whom: waits that another edge already implies are not issued.

A mark is a point in a queue's order with the knowledge the queue had there. Waiting for it
teaches the waiter both. So the transport can ask for every edge it needs, in plain words, and
only the edges that add something reach the device (the goal: no redundant wait).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvbench.device.api import Device, Event, Queue

HOST = "host"


@dataclass(frozen=True, slots=True)
class Mark:
    """A recorded point: ``seq`` on ``queue``, and what that queue was known to be behind."""

    queue: str
    seq: int
    event: Event
    knows: dict[str, int]


@dataclass(slots=True)
class Order:
    """The knowledge of each queue, and of the host, about the others."""

    device: Device
    implied: Counter[str] = field(default_factory=Counter)
    """Edges asked for and already there, by site."""
    issued: Counter[str] = field(default_factory=Counter)
    _seq: Counter[str] = field(default_factory=Counter)
    _known: dict[str, dict[str, int]] = field(default_factory=dict)

    def mark(self, queue: Queue, event: Event) -> Mark:
        """Record ``event`` at the present end of ``queue``."""
        self.device.record(queue, event)
        self._seq[queue.name] += 1
        seq = self._seq[queue.name]
        return Mark(queue.name, seq, event, {**self._knowledge(queue.name), queue.name: seq})

    def after(self, queue: Queue, mark: Mark | None, site: str) -> None:
        """Later work of ``queue`` runs after ``mark`` (None: there is nothing to be behind)."""
        if mark is None:
            return
        if self._has(queue.name, mark):
            self.implied[site] += 1
            return
        self.issued[site] += 1
        self.device.wait(queue, mark.event, site)
        self._learn(queue.name, mark)

    def after_all(self, queue: Queue, marks: Mapping[str, Mark | None]) -> None:
        """``after`` for several marks of one queue, by site: the latest implies the others."""
        made = [(mark, site) for site, mark in marks.items() if mark is not None]
        for mark, site in sorted(made, key=lambda m: -m[0].seq):
            self.after(queue, mark, site)

    def host_after(self, mark: Mark | None, site: str) -> None:
        """The host, and so all later work, is behind ``mark``."""
        if mark is None or self._has(HOST, mark):
            return
        self.device.synchronize(mark.event, site)
        self._learn(HOST, mark)

    def host_waited(self, queue: Queue) -> None:
        """The host has waited until ``queue`` was empty."""
        known = self._knowledge(HOST)
        here = {**self._knowledge(queue.name), queue.name: self._seq[queue.name]}
        for other, seq in here.items():
            known[other] = max(known.get(other, 0), seq)

    def fork(self, origin: Queue, branch: Queue, event: Event) -> tuple[Mark, dict[str, int]]:
        """Inside a capture: ``branch`` begins behind all that ``origin`` was given so far.

        Returns that point, and what ``branch`` knew outside, to be restored when the capture ends.
        The one wait that is made though it is implied: a queue enters a CUDA capture by waiting
        for a record made in it, and in no other way. As the first thing captured it has no work
        before it, so it adds no edge to the graph, whose launch orders all of it already.
        """
        outside = dict(self._knowledge(branch.name))
        mark = self.mark(origin, event)
        self.device.wait(branch, event, "fork")
        self._known[branch.name] = dict(mark.knows)
        return mark, outside

    def restore(self, branch: Queue, outside: dict[str, int]) -> None:
        """The capture is over: the real queue ``branch`` has learned nothing from it."""
        self._known[branch.name] = outside

    def _knowledge(self, queue: str) -> dict[str, int]:
        return self._known.setdefault(queue, {})

    def _has(self, who: str, mark: Mark) -> bool:
        if who == mark.queue:
            return True
        return any(self._knowledge(w).get(mark.queue, 0) >= mark.seq for w in (who, HOST))

    def _learn(self, who: str, mark: Mark) -> None:
        known = self._knowledge(who)
        for queue, seq in mark.knows.items():
            known[queue] = max(known.get(queue, 0), seq)
