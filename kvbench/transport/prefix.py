"""The stable prefix: how many leading rows of a stream this graph will not write (T1, T2).

It is kept by the object that owns the storage, set before a graph is planned, refreshed on every
micro-batch and cleared by anything that rewrites history. It decides *when* bytes move, never how
many, and says nothing about the next graph (T4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class StablePrefix:
    """Rows per stream, in units of ``stride`` bytes, and the epoch of the history they describe."""

    streams: int
    stride: int
    epoch: int = 0
    rows: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = [0] * self.streams

    def refresh(self, stream: int, rows: int) -> None:
        """This graph writes nothing below ``rows`` of ``stream``."""
        self.rows[stream] = rows

    def cap(self, stream: int, rows: int) -> None:
        """A row at ``rows`` changes: only this stream's early region shrinks (T2)."""
        self.rows[stream] = min(self.rows[stream], rows)

    def rewrite(self) -> None:
        """History was rewritten: a new epoch, and nothing is stable until refreshed (H13)."""
        self.epoch += 1
        self.rows = [0] * self.streams

    def within(self, stream: int, rows: int) -> int:
        """The early rows of a view of ``rows`` rows: clamped to one stream of it (T2)."""
        return min(self.rows[stream], rows)

    def seen_by(self, belief: Callable[[int, int], int]) -> StablePrefix:
        """A copy in which ``belief(stream, rows)`` has had its say (planted faults)."""
        copy = StablePrefix(self.streams, self.stride, self.epoch)
        copy.rows = [belief(stream, rows) for stream, rows in enumerate(self.rows)]
        return copy
