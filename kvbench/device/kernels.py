"""The kernels of a decode step, one operation each, and what they are told about a batch.

A kernel set is bound to one device and one model slice. Every method returns an Op that declares
what it reads and writes; the caller queues it. Positions and tokens live in device memory
(``state``), so that a captured graph moves on by itself at each launch (H20); the host keeps a
mirror of the row positions, from which spans are resolved when work is issued.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvbench.device.api import Device
from kvbench.device.kvtypes import KVType
from kvbench.device.memory import Buffer, Span
from kvbench.device.ops import Op

TILE = 64
"""Rows of a prefill tile: the one shape in which prompt rows are multiplied."""
MAX_DECODE_ROWS = 16
MAX_ROWS = TILE + MAX_DECODE_ROWS
STATE_COLUMNS = 8
TOKEN, POSITION, CELL, STREAM, LANE = range(5)
"""Columns of ``state`` [MAX_ROWS, 8] int32."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """What kernels must know of a model; counts."""

    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    vocab: int
    context: int
    rms_eps: float
    rope_theta: float
    rope_interleaved: bool
    rope_dim: int
    rope_factors: tuple[float, ...] = ()


class Where(NamedTuple):
    """A row's place in the cache: the stream, its lane in a packed window, and the row there."""

    stream: int
    lane: int
    cell: int


class Group(NamedTuple):
    """Rows computed together: a prefill tile, or one decode row on its own."""

    start: int
    size: int
    tile: bool


class Move(NamedTuple):
    """``size`` rows of one lane go from row ``source`` to row ``target`` (or stay, if equal)."""

    lane: int
    source: int
    target: int
    size: int


@dataclass(slots=True)
class Batch:
    """The shape of a step, and the host's mirror of where its rows are."""

    groups: tuple[Group, ...]
    outputs: tuple[int, ...]
    """Rows whose logits are wanted, in order."""
    unified: bool = False
    """One stream holds all sequences: a row attends to its list of cells."""
    where: list[Where] = field(default_factory=list)

    @property
    def n_rows(self) -> int:
        """Rows in the batch."""
        return sum(g.size for g in self.groups)

    @property
    def one_row_each(self) -> bool:
        """No row attends to what another row of this batch stores: decode of separate streams."""
        streams = {w.stream for w in self.where}
        return not any(g.tile for g in self.groups) and len(streams) == self.n_rows

    def furthest(self, packed: bool) -> dict[int, int]:
        """Largest cell by lane (packed window) or by stream (resident storage)."""
        last: dict[int, int] = {}
        for stream, lane, cell in self.where:
            key = lane if packed else stream
            last[key] = max(last.get(key, 0), cell)
        return last


@dataclass(frozen=True, slots=True)
class View:
    """How a kernel finds rows: in a packed window (by lane) or in resident storage (by stream)."""

    buffer: Buffer
    base: int
    part_bytes: int
    stream_bytes: int
    pitch: int
    packed: bool

    def row(self, part: int, lane: int, row: int) -> int:
        """Byte offset of a row in ``buffer``: ``part`` 0 is K, 1 is V."""
        return self.base + part * self.part_bytes + lane * self.stream_bytes + row * self.pitch

    def rows(self, part: int, lane: int, start: int, stop: int) -> Span:
        """Rows ``start`` to ``stop`` of one lane's K or V."""
        return Span(self.buffer, self.row(part, lane, start), (stop - start) * self.pitch)


class Kernels(ABC):
    """The decode kernels of one device. Buffers are device memory unless said otherwise."""

    def __init__(
        self,
        device: Device,
        shapes: Shapes,
        weights: Mapping[str, Any],
        codec: KVType,
        *,
        full_rows: int,
        audit: bool = False,
    ) -> None:
        """``full_rows``: rows of the longest stream. ``audit``: fold every byte read (METHOD)."""
        self.device, self.shapes, self.weights, self.codec = device, shapes, weights, codec
        self.full_rows, self.audit = full_rows, audit
        self._open_buffers()

    def _open_buffers(self) -> None:
        """What operations hand to one another; a device adds what it needs beside."""
        shapes, codec = self.shapes, self.codec
        heads, dim, d = shapes.n_heads, shapes.head_dim, shapes.d_model
        self.state = self._alloc("state", MAX_ROWS * STATE_COLUMNS * 4)
        self.x = self._alloc("x", MAX_ROWS * d * 4)
        self.q = self._alloc("q", MAX_ROWS * heads * dim * 4)
        self.rows = self._alloc("rows", MAX_ROWS * 2 * codec.pitch)
        self.mixed = self._alloc("mixed", MAX_ROWS * max(heads * dim, d) * 4)
        self.logits = self._alloc("logits", MAX_DECODE_ROWS * shapes.vocab * 4)
        self.chosen = self._alloc("chosen", MAX_DECODE_ROWS * 4)
        self.sums = self._alloc("sums", MAX_ROWS * 8)
        self.cells: Buffer | None = None
        """[MAX_ROWS, full_rows] int32, unified caches only: the cells a row attends to."""

    def _alloc(self, name: str, nbytes: int) -> Buffer:
        """Working memory: every byte is written before it is read, so it is not cleared."""
        return self.device.alloc(name, nbytes, clear=False)

    def with_cells(self) -> Buffer:
        """Allocate the cell lists that a unified cache needs."""
        if self.cells is None:
            self.cells = self._alloc("cells", MAX_ROWS * self.full_rows * 4)
        return self.cells

    def buffers(self) -> list[Buffer]:
        """Everything allocated here, to be freed by the owner."""
        own = [
            self.state,
            self.x,
            self.q,
            self.rows,
            self.mixed,
            self.logits,
            self.chosen,
            self.sums,
        ]
        return own + ([self.cells] if self.cells is not None else [])

    # ----------------------------------------------------------- the operations
    @abstractmethod
    def embed(self, batch: Batch) -> Op:
        """x[r] = embedding of the row's token; the audit sums start at zero."""

    @abstractmethod
    def attn_in(self, layer: int, batch: Batch, *, place: bool) -> Op:
        """Norm, q/k/v products, rotary: ``q``, and the new K and V rows encoded in ``rows``.

        ``place``: ``place_and_attend`` follows, and rotary and encoding may be left to it.
        """

    @abstractmethod
    def write_rows(
        self, batch: Batch, view: View, *, site: str, split: int = -1, slot: int = -1
    ) -> Op:
        """``rows`` into a view: the host arena (site "store"), a slot or resident storage."""

    @abstractmethod
    def attend(
        self, layer: int, batch: Batch, view: View, *, split: int = -1, slot: int = -1
    ) -> Op:
        """Grouped-query attention of each row over its own rows 0..cell (or its cells)."""

    def place_and_attend(
        self, layer: int, batch: Batch, view: View, *, split: int = -1, slot: int = -1
    ) -> Sequence[Op]:
        """The new rows into ``view`` and attention over it; ``rows`` holds them afterwards."""
        return (
            self.write_rows(batch, view, site="place", split=split, slot=slot),
            self.attend(layer, batch, view, split=split, slot=slot),
        )

    @abstractmethod
    def recur(self, layer: int, batch: Batch, state: Span) -> Op:
        """A recurrent layer's mixing; ``state`` [streams, d_model] float32 is updated."""

    @abstractmethod
    def mlp(self, layer: int, batch: Batch) -> Op:
        """Output product and residual, norm, gated product and residual: updates ``x``."""

    @abstractmethod
    def head(self, batch: Batch) -> Op:
        """Final norm and logits of the output rows."""

    @abstractmethod
    def choose(self, batch: Batch, *, advance: bool) -> Op:
        """Arg-max of each output row; ``advance``: it becomes that row's next token (H20)."""

    @abstractmethod
    def shift(self, view: View, moves: Sequence[Move], delta: int) -> Op:
        """Move rows of resident storage and re-rotate their K by ``delta`` positions."""


def row_spans(batch: Batch, view: View, row_bytes: int) -> list[Span]:
    """The logical bytes of each row of the batch in ``view``, K and V."""
    return [
        Span(view.buffer, view.row(part, lane if view.packed else stream, cell), row_bytes)
        for stream, lane, cell in batch.where
        for part in (0, 1)
    ]


def window_spans(batch: Batch, view: View) -> list[Span]:
    """What attention reads of ``view``: rows 0..cell of each lane, padding included."""
    return [
        view.rows(part, lane, 0, last + 1)
        for lane, last in batch.furthest(view.packed).items()
        for part in (0, 1)
    ]
