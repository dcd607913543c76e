"""The decode kernels on CUDA: each operation of ``Kernels`` as a few launches.

Every row is computed by the same instructions whatever else is in the batch: a single decode row
by those of products.py, a row of a prefill tile by those of tiles.py, however many rows there are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from kvbench.device.cuda import arguments
from kvbench.device.cuda.attention import Attention, Making, lane_column
from kvbench.device.cuda.device import CudaDevice
from kvbench.device.cuda.driver import Launch, function
from kvbench.device.cuda.products import (
    Mode,
    Product,
    address,
    most_rows,
    pointers,
    product_launch,
)
from kvbench.device.cuda.source import MACRO
from kvbench.device.cuda.tiles import TileProducts
from kvbench.device.cuda.weights import DeviceWeights, Matrix
from kvbench.device.kernels import (
    MAX_DECODE_ROWS,
    MAX_ROWS,
    TILE,
    Batch,
    Group,
    Kernels,
    Move,
    Shapes,
    View,
    row_spans,
    window_spans,
)
from kvbench.device.kvtypes import KVType
from kvbench.device.memory import Buffer, Span
from kvbench.device.ops import Op
from kvbench.device.rotary import tables
from kvbench.device.shift import shift_rows, shift_spans
from kvbench.errors import DeviceError

PIECES = 64
"""Pieces of the vocabulary in the first step of arg-max (tokens.cu)."""


class CudaKernels(Kernels):
    """See ``Kernels``. It owns ``weights``: their buffers are among its own."""

    def __init__(
        self,
        device: CudaDevice,
        shapes: Shapes,
        weights: DeviceWeights,
        codec: KVType,
        *,
        full_rows: int,
        audit: bool = False,
    ) -> None:
        super().__init__(device, shapes, weights, codec, full_rows=full_rows, audit=audit)
        s, heads, self.held = shapes, shapes.n_heads, weights
        self.kv_width = s.n_kv_heads * s.head_dim
        self.qkv_width = heads * s.head_dim + 2 * self.kv_width
        self.mixed_width = max(heads * s.head_dim, s.d_model)
        table = MACRO[self._matrix("embed").kind]
        self.attention = Attention(self, self.mixed_width, table)
        self.tiles = self._tile_products()
        cos, sin = tables(shapes, min(shapes.context, full_rows) + TILE)
        self.qkv = device.alloc("qkv", MAX_ROWS * self.qkv_width * 4)
        self.gated = device.alloc("gated", MAX_ROWS * s.d_ff * 4)
        self.best = device.alloc("best", MAX_DECODE_ROWS * PIECES * 8)
        self.cosines = device.alloc("cosines", cos.nbytes)
        self.sines = device.alloc("sines", sin.nbytes)
        with device.current():
            for buffer, values in ((self.cosines, cos), (self.sines, sin)):
                buffer.raw.view(np.float32).set(values.reshape(-1))
            device.synchronize_all()
        self._kv = MACRO[codec.name]
        self._launches: dict[Hashable, list[Launch]] = {}

    def buffers(self) -> list[Buffer]:
        return [
            *super().buffers(),
            self.qkv,
            self.gated,
            self.best,
            self.cosines,
            self.sines,
            *self.attention.buffers(),
            *(self.tiles.buffers() if self.tiles else []),
            *self.held.buffers(),
        ]

    # -------------------------------------------------------------- operations
    def embed(self, batch: Batch) -> Op:
        table, n = self._matrix("embed"), batch.n_rows

        def build() -> Iterator[Launch]:
            kernel = function("tokens", "embed", WT=MACRO[table.kind])
            yield Launch(
                kernel,
                (-(-table.k // 256), n),
                (256,),
                arguments.Embed(
                    *pointers(table), address(self.state), address(self.x), address(self.sums),
                    table.k, table.n,
                ),
            )  # fmt: skip

        return self._op("embed", ("embed", n), build, (self.state,), (self.x, self.sums))

    def attn_in(self, layer: int, batch: Batch, *, place: bool) -> Op:
        weight, n = self._matrix(f"{layer}.wqkv"), batch.n_rows
        left = place and self._makes_rows(batch)

        def build() -> Iterator[Launch]:
            product = self._product(
                weight, self.x, self.shapes.d_model, self.qkv, self.qkv_width,
                gain=f"{layer}.attn_norm",
            )  # fmt: skip
            yield from self._products(batch.groups, [product])
            if not left:
                yield self._rotate_encode(n)

        made = () if left else (self.q, self.rows)
        op = self._op(
            f"attn_in {layer}",
            ("attn_in", layer, batch.groups, left),
            build,
            (self.x, self.state),
            (self.qkv, *made, *self._tile_scratch(batch)),
        )
        op.nbytes = weight.nbytes
        return op

    def write_rows(
        self, batch: Batch, view: View, *, site: str, split: int = -1, slot: int = -1
    ) -> Op:
        width, n = self.codec.row_bytes, batch.n_rows

        def build() -> Iterator[Launch]:
            yield Launch(
                function("rows", "put_rows", KV=self._kv),
                (2, n),
                (128,),
                arguments.Put(
                    address(self.rows), address(view.buffer, view.base), address(self.state),
                    view.part_bytes, view.stream_bytes, view.pitch, width, lane_column(view),
                ),
            )  # fmt: skip

        op = self._op(f"{site} {split}", ("put", n, _key(view)), build, (self.rows, self.state), ())
        if view.buffer.space == "host" and not view.buffer.pinned:
            op.run = self._copy_rows_out(batch, view)
        op.writes = lambda: row_spans(batch, view, width)
        op.site, op.split, op.slot, op.nbytes = site, split, slot, 2 * n * width
        return op

    def attend(
        self, layer: int, batch: Batch, view: View, *, split: int = -1, slot: int = -1
    ) -> Op:
        return self._attend(layer, batch, view, None, split, slot)

    def place_and_attend(
        self, layer: int, batch: Batch, view: View, *, split: int = -1, slot: int = -1
    ) -> Sequence[Op]:
        if not self._makes_rows(batch):
            return super().place_and_attend(layer, batch, view, split=split, slot=slot)
        made = Making(self.qkv, self.cosines, self.sines)
        op = self._attend(layer, batch, view, made, split, slot)
        rows, written = self.rows.span(), op.spans()[1]
        op.writes = lambda: (*written, rows, *row_spans(batch, view, self.codec.row_bytes))
        return (op,)

    def _makes_rows(self, batch: Batch) -> bool:
        """Whether attention turns and encodes the batch's rows itself (attend.cu, NEW)."""
        return self.attention.makes_rows and batch.one_row_each

    def _attend(
        self, layer: int, batch: Batch, view: View, new: Making | None, split: int, slot: int
    ) -> Op:
        inputs = [new.qkv if new else self.q, self.state]
        if batch.unified:
            assert self.cells is not None
            inputs.append(self.cells)
        op = self._op(
            f"attend {layer}",
            ("attend", batch.groups, batch.unified, new is not None, _key(view)),
            lambda: self.attention.launches(batch, view, new),
            (),
            (self.mixed, self.sums, *self.attention.buffers()),
        )
        whole = tuple(b.span() for b in inputs)
        op.reads = lambda: (*whole, *window_spans(batch, view))
        op.site, op.split, op.slot = "attend", split, slot
        return op

    def recur(self, layer: int, batch: Batch, state: Span) -> Op:
        weight = self._matrix(f"{layer}.w_rec")

        def build() -> Iterator[Launch]:
            product = self._product(
                weight, self.x, self.shapes.d_model, self.mixed, self.mixed_width,
                mode="recurrent", gain=f"{layer}.attn_norm",
                memory=address(state.buffer, state.offset),
            )  # fmt: skip
            yield from self._products(batch.groups, [product])

        key = ("recur", layer, batch.groups, state.buffer.id, state.offset)
        writes = (self.mixed, *self._tile_scratch(batch))
        op = self._op(f"recur {layer}", key, build, (self.x, self.state), writes)
        op.reads, op.writes = (*op.spans()[0], state), (*op.spans()[1], state)
        op.nbytes = weight.nbytes
        return op

    def mlp(self, layer: int, batch: Batch) -> Op:
        groups, s = batch.groups, self.shapes
        wo, down = self._matrix(f"{layer}.wo"), self._matrix(f"{layer}.w_down")
        gate_up = self._matrix(f"{layer}.w_gate_up")

        def build() -> Iterator[Launch]:
            products = [
                self._product(wo, self.mixed, self.mixed_width, self.x, s.d_model, mode="residual"),
                self._product(
                    gate_up, self.x, s.d_model, self.gated, s.d_ff,
                    mode="gated", gain=f"{layer}.ffn_norm",
                ),
                self._product(down, self.gated, s.d_ff, self.x, s.d_model, mode="residual"),
            ]  # fmt: skip
            yield from self._products(groups, products)

        op = self._op(
            f"mlp {layer}",
            ("mlp", layer, groups),
            build,
            (self.mixed, self.x),
            (self.x, self.gated, *self._tile_scratch(batch)),
        )
        op.nbytes = wo.nbytes + gate_up.nbytes + down.nbytes
        return op

    def head(self, batch: Batch) -> Op:
        weight, s = self._matrix("head"), self.shapes

        def build() -> Iterator[Launch]:
            for at, first, count in _runs(batch.outputs):
                product = self._product(
                    weight, self.x, s.d_model, self.logits, s.vocab,
                    gain="final_norm", x_row=first, y_row=at,
                )  # fmt: skip
                yield from self._products((Group(0, count, False),), [product])

        op = self._op("head", ("head", batch.outputs), build, (self.x,), (self.logits,))
        op.nbytes = weight.nbytes
        return op

    def choose(self, batch: Batch, *, advance: bool) -> Op:
        outputs, n = batch.outputs, batch.n_rows

        def build() -> Iterator[Launch]:
            best_at = address(self.best, MAX_DECODE_ROWS * PIECES * 4)
            given = arguments.Argmax(
                address(self.logits), address(self.best), best_at, address(self.chosen),
                address(self.state) if advance else None, self.shapes.vocab, n,
                (ctypes.c_int * 16)(*outputs),
            )  # fmt: skip
            table = MACRO[self._matrix("embed").kind]
            pieces = function("tokens", "argmax_pieces", WT=table)
            yield Launch(pieces, (PIECES, len(outputs)), (256,), given)
            last = function("tokens", "choose", WT=table)
            yield Launch(last, (1,), (32 * len(outputs),), given)

        reads = (self.logits, self.state) if advance else (self.logits,)
        writes = (self.chosen, self.state) if advance else (self.chosen,)
        return self._op(
            "choose", ("choose", outputs, n, advance), build, reads, (*writes, self.best)
        )

    def shift(self, view: View, moves: Sequence[Move], delta: int) -> Op:
        def run(stream: Any) -> None:
            # Rare, and not worth kernels of its own: the rows pass through the host.
            stream.synchronize()
            raw = view.buffer.raw
            on_host = raw if view.buffer.space == "host" else raw.get()
            shift_rows(on_host, view, self.codec, self.shapes, moves, delta)
            if on_host is not raw:
                raw.set(on_host)

        op = Op("kernel", "shift", run, site="shift")
        op.reads, op.writes = shift_spans(view, moves)
        return op

    # ----------------------------------------------------------------- details
    def _matrix(self, name: str) -> Matrix:
        matrix = self.weights[name]
        assert isinstance(matrix, Matrix)
        return matrix

    def _op(
        self,
        label: str,
        key: Hashable,
        build: Callable[[], Iterator[Launch]],
        reads: Sequence[Buffer],
        writes: Sequence[Buffer],
    ) -> Op:
        """An operation of launches, prepared once for each ``key``."""

        def run(stream: Any) -> None:
            launches = self._launches.get(key)
            if launches is None:
                launches = self._launches[key] = list(build())
            pointer = stream.ptr
            for launch in launches:
                launch(pointer)

        return Op(
            "kernel",
            label,
            run,
            tuple(b.span() for b in reads),
            tuple(b.span() for b in writes),
            site=label.split(" ", 1)[0],
        )

    def _tile_products(self) -> TileProducts | None:
        """None for float32 weights: their tiles are multiplied like decode rows."""
        named = {n: m for n, m in self.held.items() if isinstance(m, Matrix)}
        found = [m for n, m in named.items() if n not in ("embed", "head") and m.kind != "f32"]
        assert isinstance(self.device, CudaDevice)
        return TileProducts(self.device, found) if found else None

    def _tile_scratch(self, batch: Batch) -> list[Buffer]:
        return self.tiles.buffers() if self.tiles and any(g.tile for g in batch.groups) else []

    def _product(
        self,
        weight: Matrix,
        x: Buffer,
        ldx: int,
        y: Buffer,
        ldy: int,
        *,
        mode: Mode = "plain",
        gain: str | None = None,
        memory: int | None = None,
        x_row: int = 0,
        y_row: int = 0,
    ) -> Product:
        return Product(
            weight,
            address(x, x_row * ldx * 4),
            ldx,
            address(y, y_row * ldy * 4),
            ldy,
            mode,
            gain=address(self.weights[gain]) if gain else None,
            memory=memory,
            state=address(self.state),
            eps=self.shapes.rms_eps,
        )

    def _products(self, groups: Sequence[Group], products: Sequence[Product]) -> Iterator[Launch]:
        """Products that follow each other, of a tile at once, and of as many decode rows at a time
        as one launch takes."""
        most = min(most_rows(p.weight) for p in products)
        for first, rows, tile in _pieces(groups, self.tiles is not None, most):
            for product in (p.from_row(first) for p in products):
                if tile and self.tiles is not None:
                    yield from self.tiles.launches(product, rows)
                else:
                    yield product_launch(product, rows)

    def _rotate_encode(self, n: int) -> Launch:
        s = self.shapes
        q_width = s.n_heads * s.head_dim
        values = self.kv_width if self._kv == "F16" else -(-self.kv_width // 256) * 256
        grid = -(-q_width // 256) + 2 * -(-values // 256)
        return Launch(
            function("rows", "rotate_encode", KV=self._kv),
            (grid, n),
            (256,),
            arguments.Encode(
                address(self.qkv), address(self.q), address(self.rows), address(self.state),
                address(self.cosines), address(self.sines), self.codec.pitch, q_width,
                self.kv_width, s.head_dim, s.rope_dim, int(s.rope_interleaved),
            ),
        )  # fmt: skip

    def _copy_rows_out(self, batch: Batch, view: View) -> Callable[[Any], None]:
        """Rows to pageable host memory: copies to where the host knows the rows to be.

        Not for captured graphs, whose copies could not move on.
        """
        import cupy

        runtime = cupy.cuda.runtime

        def run(stream: Any) -> None:
            if stream.is_capturing():
                raise DeviceError(f"{view.buffer.name} is not pinned: its store cannot be captured")
            targets = row_spans(batch, view, self.codec.row_bytes)
            for i, span in enumerate(targets):
                runtime.memcpyAsync(
                    view.buffer.raw.ctypes.data + span.offset,
                    address(self.rows, i * self.codec.pitch),
                    span.length,
                    runtime.memcpyDeviceToHost,
                    stream.ptr,
                )

        return run


def _key(view: View) -> Hashable:
    return (view.buffer.id, view.base, view.part_bytes, view.stream_bytes, view.packed)


def _pieces(groups: Sequence[Group], tiles: bool, most: int) -> Iterator[Group]:
    """The rows of each product: ``tiles`` as they are, all others in order, ``most`` at a time."""
    waiting = Group(0, 0, False)
    for group in groups:
        if group.tile and tiles:
            yield from _parts(waiting, most)
            yield group
            waiting = Group(group.start + group.size, 0, False)
        else:
            waiting = Group(waiting.start, waiting.size + group.size, False)
    yield from _parts(waiting, most)


def _parts(group: Group, most: int) -> Iterator[Group]:
    end = group.start + group.size
    for first in range(group.start, end, most):
        yield Group(first, min(most, end - first), False)


def _runs(rows: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(index of the first, first row, count) of each run of consecutive rows."""
    at = 0
    while at < len(rows):
        count = 1
        while at + count < len(rows) and rows[at + count] == rows[at] + count:
            count += 1
        yield at, rows[at], count
        at += count
