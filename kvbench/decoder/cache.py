"""The KV cache: who sits in which row, and the storage that holds the rows.

Non-unified: every sequence has a stream of its own, and position p of it lies in row p.
Unified: all sequences share one stream; a sequence is a list of cells in order of position, and
freed cells are filled again, in mid-window too (H12).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvbench.device.kernels import Move, Where
from kvbench.errors import UsageError
from kvbench.transport.prefix import StablePrefix
from kvbench.transport.window import Geometry, Storage


@dataclass(frozen=True, slots=True)
class Row:
    """One token's place: sequence, position in it, and where it lies."""

    sequence: int
    position: int
    where: Where


@dataclass(slots=True)
class KVCache:
    """Row bookkeeping for ``sequences`` sequences of up to ``capacity`` positions each."""

    sequences: int
    capacity: int
    """Rows per sequence; a unified cache has sequences x capacity rows in its one stream."""
    pitch: int
    unified: bool = False
    row_multiple: int = 64
    storages: list[Storage] = field(default_factory=list)
    """One per attention layer, host-resident or device-resident."""
    cells: list[list[int]] = field(default_factory=list)
    """Cells of each sequence, in order of position."""
    prefix: StablePrefix = field(init=False)
    _free: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.cells = [[] for _ in range(self.sequences)]
        self.prefix = StablePrefix(self.streams, self.pitch)
        self._free = list(range(self.rows))[::-1] if self.unified else []

    @property
    def streams(self) -> int:
        """Independent regions of the storage."""
        return 1 if self.unified else self.sequences

    @property
    def rows(self) -> int:
        """Rows per stream."""
        return self.capacity * self.sequences if self.unified else self.capacity

    def length(self, sequence: int) -> int:
        """Positions that a sequence has."""
        return len(self.cells[sequence])

    # ------------------------------------------------------------------- growth
    def append(
        self, counts: Sequence[tuple[int, int]], assumed: Mapping[int, int] | None = None
    ) -> list[Row]:
        """Place ``count`` new tokens of each (sequence, count), and refresh the prefix (T1).

        ``assumed``: rows of a sequence that an earlier graph took to be stable when it looked
        ahead to this one. Fewer rows than are stable may be called so, never more (H9).
        Raises UsageError naming the sequence that has no room.
        """
        for sequence, count in counts:
            room = len(self._free) if self.unified else self.capacity - self.length(sequence)
            if count > room:
                raise UsageError(
                    f"sequence {sequence}: {count} more tokens do not fit; the cache holds "
                    f"{self.capacity} positions a sequence and {self.length(sequence)} are used"
                )
        lanes = {s: lane for lane, s in enumerate(sorted({self._stream(q) for q, _ in counts}))}
        rows: list[Row] = []
        for sequence, count in counts:
            stream = self._stream(sequence)
            for _ in range(count):
                position = self.length(sequence)
                cell = self._free.pop() if self.unified else position
                self.cells[sequence].append(cell)
                rows.append(Row(sequence, position, Where(stream, lanes[stream], cell)))
        for stream in lanes:
            self.prefix.refresh(stream, min(r.where.cell for r in rows if r.where.stream == stream))
        if not self.unified:
            for sequence, stable in (assumed or {}).items():
                self.prefix.cap(sequence, stable)
        return rows

    def geometry(self, rows: Sequence[Row]) -> Geometry:
        """What a graph over ``rows`` reads: each active stream up to its furthest used row."""
        active = tuple(sorted({r.where.stream for r in rows}))
        if self.unified:
            furthest = max(c for cells in self.cells for c in cells)
        else:
            furthest = max(self.length(r.sequence) for r in rows) - 1
        return Geometry(active, self._rounded(furthest + 1))

    def following(
        self, rows: Sequence[Row], ahead: Mapping[int, int] | None = None
    ) -> tuple[Geometry, tuple[int, ...]] | None:
        """(geometry, stable rows by stream) of the next graph; None where that cannot be told.

        Without ``ahead`` each sequence goes on by one token. With it, a sequence takes
        ``ahead[sequence]`` tokens next, after any number of ``rows`` but its first was rolled back:
        stable is what is so in every case, and all cases must share a geometry (H9). A unified
        cache's next cell may lie anywhere, and a full sequence has no next graph.
        """
        if self.unified:
            return None
        least: dict[int, int] = {}
        most: dict[int, int] = {}
        for row in rows:
            stream, length = row.where.stream, self.length(row.sequence)
            if ahead is None:
                least[stream], most[stream] = length, length + 1
            else:
                least[stream] = min(least.get(stream, length), row.position + 1)
                most[stream] = length + ahead[row.sequence]
        if max(most.values()) > self.capacity:
            return None
        shortest, longest = max(least.values()) + 1, max(most.values())
        if self._rounded(shortest) != self._rounded(longest):
            return None
        active = tuple(sorted(least))
        return Geometry(active, self._rounded(longest)), tuple(least[s] for s in active)

    def _rounded(self, rows: int) -> int:
        return min(-(-rows // self.row_multiple) * self.row_multiple, self.rows)

    def _stream(self, sequence: int) -> int:
        return 0 if self.unified else sequence

    # ------------------------------------------------------- rewriting of history
    def truncate(self, sequence: int, length: int) -> None:
        """Forget positions from ``length`` on (roll back): their rows are no longer stable."""
        gone = self.cells[sequence][length:]
        del self.cells[sequence][length:]
        if self.unified:
            self._free += gone[::-1]
        if gone:
            self.prefix.cap(self._stream(sequence), min(gone))

    def reset(self, sequence: int) -> None:
        """Empty one sequence; only its own early region is capped (T2)."""
        self.truncate(sequence, 0)

    def clear(self) -> None:
        """Empty everything: a new epoch."""
        for sequence in range(self.sequences):
            self.truncate(sequence, 0)
        self.prefix.rewrite()

    def shift(self, sequence: int, keep: int, discard: int) -> tuple[list[Move], int]:
        """Drop positions [keep, keep + discard) and close up: a new epoch (T1, H13).

        Returns the row moves, with the stream as lane, and by how many positions K turns.
        """
        length = self.length(sequence)
        if keep < 0 or discard < 1 or keep + discard > length:
            raise UsageError(
                f"shift of sequence {sequence}: keep {keep} and discard {discard} must lie within "
                f"its {length} positions"
            )
        cells, stream = self.cells[sequence], self._stream(sequence)
        gone, later = cells[keep : keep + discard], cells[keep + discard :]
        self.prefix.rewrite()
        if self.unified:
            self._free += gone[::-1]
            del cells[keep : keep + discard]
            return [Move(stream, cell, cell, 1) for cell in later], -discard
        del cells[length - discard :]
        if not later:
            return [], -discard
        return [Move(stream, keep + discard, keep, len(later))], -discard
