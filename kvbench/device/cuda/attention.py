"""The launches of attention: spans of a window, combined; in audit mode its bytes are summed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvbench.device.cuda import arguments
from kvbench.device.cuda.driver import Launch, function
from kvbench.device.cuda.products import address
from kvbench.device.cuda.source import FAST_HEADS, MACRO
from kvbench.device.kernels import (
    LANE,
    MAX_ROWS,
    STATE_COLUMNS,
    STREAM,
    Batch,
    Group,
    Kernels,
    View,
)
from kvbench.device.kvtypes import BLOCK
from kvbench.device.memory import Buffer

CHUNK_ROWS = 64
SPANS = 64
"""A row's window is cut into at most SPANS spans, each a whole number of chunks that depends on
the row's position alone, as do its bits: there is one partial result per span."""

SCRATCH_BYTES = 64 << 20
"""Partials of one attention pass; a batch that needs more takes several passes, same bits."""

AUDIT_BLOCKS = 64
COLUMNS = 8
"""Query heads of a KV head that one block takes."""
SLICE = 32
WAYS = 8
"""A block of the combine kernel: elements of a head that it takes, and warps."""
FOLDED = 16
"""Up to so many spans are combined by the block that is last to finish one, in the same kernel."""


@dataclass(frozen=True, slots=True)
class Making:
    """Where a decode row's new K and V come from, for attention that makes them itself."""

    qkv: Buffer
    """[MAX_ROWS, width of q, k and v] float32, as the product left them."""
    cosines: Buffer
    sines: Buffer


class Attention:
    """Scratch and launches for the rows of ``kernels``; ``table``: the embedding's type (macro)."""

    def __init__(self, kernels: Kernels, mixed_width: int, table: str) -> None:
        self.kernels, self.mixed_width, self.table = kernels, mixed_width, table
        shapes = kernels.shapes
        self.makes_rows = shapes.head_dim in FAST_HEADS
        self.kv = MACRO[kernels.codec.name]
        self.group = shapes.n_heads // shapes.n_kv_heads
        self.max_spans = spans(kernels.full_rows)
        per_row = shapes.n_heads * self.max_spans * (shapes.head_dim + 2) * 4
        self.pass_rows = max(1, min(MAX_ROWS, SCRATCH_BYTES // per_row))
        self.partials = kernels.device.alloc("partials", self.pass_rows * per_row)
        self.totals = kernels.device.alloc("audit totals", MAX_ROWS * 2 * 8)
        self.blocks = shapes.n_kv_heads * -(-self.group // COLUMNS)
        self.arrived = kernels.device.alloc("arrived", self.pass_rows * self.blocks * 4)

    def buffers(self) -> list[Buffer]:
        """Everything allocated here."""
        return [self.partials, self.totals, self.arrived]

    def launches(self, batch: Batch, view: View, new: Making | None = None) -> Iterator[Launch]:
        """Attention of all rows of ``batch`` over ``view``, into the kernels' ``mixed``.

        ``new``: rows are turned and encoded first, and put into ``view`` and the kernels' ``rows``;
        no row of the batch may attend to another's (``makes_rows``, ``Batch.one_row_each``).
        """
        for start, count, tile in _merged(batch.groups):
            for first in range(start, start + count, self.pass_rows):
                rows = min(self.pass_rows, start + count - first)
                last = start + count - 1 if tile else None
                yield from self._rows(view, first, rows, batch.unified, last, new)

    def _rows(
        self,
        view: View,
        first: int,
        rows: int,
        unified: bool,
        last: int | None,
        new: Making | None,
    ) -> Iterator[Launch]:
        """``last``: a tile's last row, whose list of cells all its rows share."""
        s, dim, heads = (
            self.kernels.shapes,
            self.kernels.shapes.head_dim,
            self.kernels.shapes.n_heads,
        )
        window_rows = self.kernels.full_rows if unified else view.stream_bytes // view.pitch
        cells, stride = None, 0
        if unified:
            assert self.kernels.cells is not None
            cells = address(
                self.kernels.cells, (first if last is None else last) * self.kernels.full_rows * 4
            )
            stride = self.kernels.full_rows if last is None else 0
        state = address(self.kernels.state, first * STATE_COLUMNS * 4)
        k = address(view.buffer, view.base)
        v, column = k + view.part_bytes, lane_column(view)
        part_ml = address(self.partials, self.pass_rows * heads * self.max_spans * dim * 4)
        mixed = address(self.kernels.mixed, first * self.mixed_width * 4)
        defines = {"KV": self.kv, "HD": dim, "G": self.group, "NEW": int(new is not None)}
        wide = min(self.max_spans, spans(window_rows))
        fold = wide <= FOLDED
        pad = 0 if self.kv == "F16" else (-s.n_kv_heads * dim // BLOCK) % 8
        yield Launch(
            function("attend", "attend", **defines),
            (wide, self.blocks, rows),
            (attend_threads(dim),),
            arguments.Window(
                k, v, view.stream_bytes, view.pitch, state, cells, stride, column,
                s.n_kv_heads, pad, self.max_spans, fold, dim**-0.5,
                address(self.kernels.q, first * heads * dim * 4), address(self.partials), part_ml,
                address(self.arrived), mixed, self.mixed_width, *self._making(new, first),
            ),
            shared=attend_shared(self.kv, dim),
        )  # fmt: skip
        if not fold:
            yield Launch(
                function("attend", "combine", **defines | {"NEW": 0}),
                (heads, -(-dim // SLICE), rows),
                (WAYS * SLICE,),
                arguments.Combine(
                    address(self.partials), part_ml, state, mixed, self.mixed_width, self.max_spans
                ),
            )
        if self.kernels.audit:
            audit = arguments.Audit(
                k, v, state, cells, address(self.totals), address(self.kernels.sums, first * 8),
                view.stream_bytes, view.pitch, stride, column, rows,
                -1 if last is None else last - first,
            )  # fmt: skip
            windows = function("tokens", "audit_windows", WT=self.table)
            yield Launch(windows, (AUDIT_BLOCKS, 2, rows), (256,), audit)
            yield Launch(function("tokens", "audit_fold", WT=self.table), (1,), (MAX_ROWS,), audit)

    def _making(self, new: Making | None, first: int) -> tuple[int | None, ...]:
        """The fields of the kernel's argument that only new rows need."""
        if new is None:
            return (None, None, None, None, 0, 0, 0)
        s, pitch = self.kernels.shapes, self.kernels.codec.pitch
        width = (s.n_heads + 2 * s.n_kv_heads) * s.head_dim
        return (
            address(new.qkv, first * width * 4), address(self.kernels.rows, first * 2 * pitch),
            address(new.cosines), address(new.sines), pitch, s.rope_dim, int(s.rope_interleaved),
        )  # fmt: skip


def spans(rows: int) -> int:
    """The most partial results of a row whose window has ``rows`` rows."""
    return min(SPANS, -(-rows // CHUNK_ROWS))


def attend_threads(head_dim: int) -> int:
    """Threads of a block of the attend kernel."""
    if head_dim not in FAST_HEADS:
        return CHUNK_ROWS
    return 256 if head_dim == 256 else 128


def attend_shared(kv: str, head_dim: int) -> int:
    """Dynamic shared memory of the attend kernel: the rows of K and of V that a block holds."""
    if head_dim not in FAST_HEADS:
        return 0
    segment = {"F16": 2 * head_dim, "Q8": head_dim // BLOCK * 34, "Q4": head_dim // BLOCK * 18}[kv]
    row = (segment + 15) // 32 * 32 + 16
    both = 2 * CHUNK_ROWS * row
    return both if both <= 48 << 10 else both // 2


def lane_column(view: View) -> int:
    """The column of a row's state that says where in ``view`` its stream lies."""
    return LANE if view.packed else STREAM


def _merged(groups: tuple[Group, ...]) -> list[tuple[int, int, bool]]:
    """(first row, count, whether it is a tile), neighbouring single rows taken together."""
    out: list[tuple[int, int, bool]] = []
    for start, count, tile in groups:
        if not tile and out and not out[-1][2] and out[-1][0] + out[-1][1] == start:
            out[-1] = (out[-1][0], out[-1][1] + count, False)
        else:
            out.append((start, count, tile))
    return out
