"""Memory with a lifetime, and spans of it: what every operation declares that it touches."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, Literal

Space = Literal["host", "device"]

_ids = itertools.count(1)


@dataclass(eq=False, slots=True)
class Buffer:
    """One allocation. Identity matters, not content: two buffers never share bytes.

    ``raw`` is the device's own handle: a uint8 NumPy array of ``nbytes`` for the host space and
    for the cpu device, a CuPy uint8 array for CUDA device memory.
    """

    name: str
    space: Space
    nbytes: int
    raw: Any = field(repr=False, default=None)
    pinned: bool = False
    alive: bool = True
    id: int = field(default_factory=lambda: next(_ids))

    def span(self, offset: int = 0, length: int | None = None) -> Span:
        """The contiguous bytes ``[offset, offset + length)``; all of it by default."""
        return Span(self, offset, self.nbytes - offset if length is None else length)


@dataclass(frozen=True, slots=True)
class Span:
    """``count`` runs of ``length`` bytes each, ``pitch`` bytes apart, from ``offset`` on.

    ``count == 1`` is a contiguous range and ``pitch`` is then ignored.
    """

    buffer: Buffer
    offset: int
    length: int
    count: int = 1
    pitch: int = 0

    def __post_init__(self) -> None:
        if self.length < 0 or self.count < 1 or self.offset < 0 or self.end > self.buffer.nbytes:
            raise ValueError(
                f"span {self.describe()} lies outside {self.buffer.name!r} "
                f"(0..{self.buffer.nbytes})"
            )
        if self.count > 1 and self.pitch < self.length:
            raise ValueError(f"span {self.describe()}: runs overlap (pitch < length)")

    @property
    def nbytes(self) -> int:
        """Bytes touched, gaps excluded."""
        return self.length * self.count

    @property
    def end(self) -> int:
        """One past the last byte touched."""
        return self.offset + (self.count - 1) * self.pitch + self.length

    def describe(self) -> str:
        """The span in words, for race reports and errors."""
        runs = f"{self.count}x[{self.length} every {self.pitch}]" if self.count > 1 else ""
        return f"{self.buffer.name}[{self.offset}:{self.end}]{runs}"
