"""Where a layer's window lies in its storage, and where in a packed slot (pure data).

Storage of one layer: [K: streams x capacity rows][V: the same], a row ``pitch`` bytes.
A slot, or any packed window: [K: active streams x rows][V: the same], no gaps (T9).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvbench.device.kernels import View
from kvbench.device.memory import Buffer


@dataclass(frozen=True, slots=True)
class Storage:
    """One layer's K and V rows of every stream, in one buffer on the host or the device."""

    buffer: Buffer
    streams: int
    capacity: int
    """Rows per stream."""
    pitch: int
    """Allocated bytes per row, padding included; a multiple of 16."""
    annotated: bool = True
    """Whether this is a transport candidate (T3)."""

    def lend(self) -> Storage:
        """The same memory for a cache that borrows it: no longer a candidate (T3)."""
        return replace(self, annotated=False)

    @property
    def part_bytes(self) -> int:
        """Bytes of K, and of V."""
        return self.streams * self.capacity * self.pitch

    def row(self, part: int, stream: int, row: int) -> int:
        """Byte offset of one row of K (part 0) or V (part 1)."""
        return part * self.part_bytes + (stream * self.capacity + row) * self.pitch


@dataclass(frozen=True, slots=True)
class Geometry:
    """What one graph reads of every layer: the same rows of each active stream."""

    active: tuple[int, ...]
    """Streams in ascending order; their position here is their lane in a packed window."""
    rows: int

    def part_bytes(self, pitch: int) -> int:
        """Bytes of K, and of V, in a packed window."""
        return len(self.active) * self.rows * pitch

    def window_bytes(self, pitch: int) -> int:
        """Bytes of a packed window."""
        return 2 * self.part_bytes(pitch)


def packed_view(buffer: Buffer, base: int, geometry: Geometry, pitch: int) -> View:
    """The view of a window packed at ``base``."""
    return View(buffer, base, geometry.part_bytes(pitch), geometry.rows * pitch, pitch, True)


def resident_view(storage: Storage) -> View:
    """The view of storage that lives on the device."""
    return View(
        storage.buffer,
        0,
        storage.part_bytes,
        storage.capacity * storage.pitch,
        storage.pitch,
        False,
    )


@dataclass(frozen=True, slots=True)
class Range:
    """One (2D) copy: ``count`` runs of ``length`` bytes from the storage into the slot."""

    source: int
    target: int
    """Offset from the slot's start."""
    length: int
    count: int
    source_pitch: int
    target_pitch: int

    @property
    def nbytes(self) -> int:
        """Bytes moved."""
        return self.length * self.count


def ranges(
    storage: Storage, geometry: Geometry, rows: tuple[tuple[int, int], ...]
) -> tuple[Range, ...]:
    """The copies that bring rows [start, stop) of each active stream, K then V.

    Neighbouring streams with equal rows become one 2D copy; gaps are never moved (T9).
    """
    pitch = storage.pitch
    out: list[Range] = []
    for part in (0, 1):
        for lane, count in _runs(geometry.active, rows):
            start, stop = rows[lane]
            if start >= stop:
                continue
            out.append(
                Range(
                    source=storage.row(part, geometry.active[lane], start),
                    target=part * geometry.part_bytes(pitch)
                    + (lane * geometry.rows + start) * pitch,
                    length=(stop - start) * pitch,
                    count=count,
                    source_pitch=storage.capacity * pitch,
                    target_pitch=geometry.rows * pitch,
                )
            )
    return tuple(out)


def _runs(active: tuple[int, ...], rows: tuple[tuple[int, int], ...]) -> Iterator[tuple[int, int]]:
    """(first lane, length) of each run of consecutive streams with equal rows."""
    lane = 0
    while lane < len(active):
        count = 1
        while (
            lane + count < len(active)
            and active[lane + count] == active[lane] + count
            and rows[lane + count] == rows[lane]
        ):
            count += 1
        yield lane, count
        lane += count
