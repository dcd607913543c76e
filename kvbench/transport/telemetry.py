"""What the transport did and why it stopped (T21): counters that end up in every record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kvbench.transport.budget import Decline

MOST_WARNINGS = 32
"""In one run, should ring and decline alternate for long; ``declines`` counts all."""


@dataclass(slots=True)
class Telemetry:
    """Totals over a run, for one device."""

    graphs: int = 0
    staged_graphs: int = 0
    deliveries: int = 0
    carried: int = 0
    """Deliveries made for the next graph and used by it."""
    bytes: Counter[str] = field(default_factory=Counter)
    """early, late, ordered, wasted (carried, then discarded), excess (rows beyond the length)."""
    declines: Counter[str] = field(default_factory=Counter)
    details: dict[str, str] = field(default_factory=dict)
    """The latest decline of each reason in a sentence, with what would have been needed (T12)."""
    stops: Counter[str] = field(default_factory=Counter)
    """Why the look-ahead did not reach into the next graph, one count per graph."""
    ring_bytes: int = 0
    rings: int = 0
    """Rings allocated over the run (T13)."""
    warnings: list[str] = field(default_factory=list)
    """Declines worth telling a user: each reason once until there is a ring again (T13)."""
    _told: set[str] = field(default_factory=set)

    def decline(self, decline: Decline) -> None:
        """A graph was declined; depth 0 is no decline."""
        if decline.reason == "off":
            return
        self.declines[decline.reason] += 1
        self.details[decline.reason] = decline.detail
        if decline.reason not in self._told and len(self.warnings) < MOST_WARNINGS:
            self._told.add(decline.reason)
            self.warnings.append(f"ordered path: {decline.reason}: {decline.detail}")

    def ring(self, nbytes: int) -> None:
        """A ring of ``nbytes`` exists (again)."""
        self.rings += 1
        self.ring_bytes = max(self.ring_bytes, nbytes)
        self._told.clear()

    def as_dict(self) -> dict[str, Any]:
        """JSON-able, empty parts left out."""
        values: dict[str, Any] = {
            "graphs": self.graphs,
            "staged_graphs": self.staged_graphs,
            "deliveries": self.deliveries,
            "carried": self.carried,
            "rings": self.rings,
            "ring_bytes": self.ring_bytes,
        }
        for name in ("declines", "details", "stops"):
            found: dict[str, Any] = dict(getattr(self, name))
            if found:
                values[name] = found
        if self.warnings:
            values["warnings"] = list(self.warnings)
        return values
