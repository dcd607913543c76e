"""What the transport did and why it stopped (T21): counters that end up in every record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from kvbench.transport.budget import Decline


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

    def decline(self, decline: Decline) -> None:
        """A graph was declined; depth 0 is no decline."""
        if decline.reason != "off":
            self.declines[decline.reason] += 1
            self.details[decline.reason] = decline.detail

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
        return values
