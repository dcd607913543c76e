"""The decode kernels on CUDA: each operation of ``Kernels`` as a few launches.

Every row is computed by the same instructions whatever else is in the batch, so the groups of a
batch (prefill tiles, single decode rows) change which launches are made and no result.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from kvbench.device.api import Device
from kvbench.device.cuda import arguments
from kvbench.device.cuda.driver import Launch, function, multiprocessors
from kvbench.device.cuda.source import MACRO, ROW_VARIANTS
from kvbench.device.cuda.weights import DeviceWeights, Matrix
from kvbench.device.kernels import (
    LANE,
    MAX_DECODE_ROWS,
    MAX_ROWS,
    STATE_COLUMNS,
    STREAM,
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
from kvbench.device.kvtypes import BLOCK, KVType
from kvbench.device.memory import Buffer, Span
from kvbench.device.ops import Op
from kvbench.device.rotary import tables
from kvbench.device.shift import shift_rows, shift_spans
from kvbench.errors import DeviceError

CHUNK_ROWS = 64
"""Rows of a window per partial result: fixed, so that a row's bits do not depend on the window."""

SCRATCH_BYTES = 64 << 20
"""Partials of one attention pass; a batch that needs more takes several passes, same bits."""

AUDIT_BLOCKS = 64
PIECES = 64
FAST_HEADS = (64, 128, 256)
BLOCKS_PER_SM = 4

NEXT_PIECE = 16384
NEXT_BYTES = 0
"""Of the next weights, what a product orders into L2 as it ends (NEXT_PIECE: as matvec.cu)."""


def address(buffer: Buffer, offset: int = 0) -> int:
    """Where a kernel finds the buffer: device memory, or host memory mapped by pinning."""
    if buffer.space == "device":
        return int(buffer.raw.data.ptr) + offset
    if not buffer.pinned:
        raise DeviceError(f"{buffer.name} is not pinned: no kernel can reach it")
    return int(buffer.raw.ctypes.data) + offset


class CudaKernels(Kernels):
    """See ``Kernels``. It owns ``weights``: their buffers are among its own."""

    def __init__(
        self,
        device: Device,
        shapes: Shapes,
        weights: DeviceWeights,
        codec: KVType,
        *,
        full_rows: int,
        audit: bool = False,
    ) -> None:
        super().__init__(device, shapes, weights, codec, full_rows=full_rows, audit=audit)
        s, heads, self.held = shapes, shapes.n_heads, weights
        self.group = heads // s.n_kv_heads
        self.kv_width = s.n_kv_heads * s.head_dim
        self.qkv_width = heads * s.head_dim + 2 * self.kv_width
        self.mixed_width = max(heads * s.head_dim, s.d_model)
        self.max_chunks = -(-full_rows // CHUNK_ROWS)
        per_row = heads * self.max_chunks * (s.head_dim + 2) * 4
        self.pass_rows = max(1, min(MAX_ROWS, SCRATCH_BYTES // per_row))
        cos, sin = tables(shapes, min(shapes.context, full_rows) + TILE)
        self.qkv = device.alloc("qkv", MAX_ROWS * self.qkv_width * 4)
        self.gated = device.alloc("gated", MAX_ROWS * s.d_ff * 4)
        self.partials = device.alloc("partials", self.pass_rows * per_row)
        self.best = device.alloc("best", MAX_DECODE_ROWS * PIECES * 8)
        self.totals = device.alloc("audit totals", MAX_ROWS * 2 * 8)
        self.cosines = device.alloc("cosines", cos.nbytes)
        self.sines = device.alloc("sines", sin.nbytes)
        self.cosines.raw.view(np.float32)[:] = _on_device(cos)
        self.sines.raw.view(np.float32)[:] = _on_device(sin)
        self._kv = MACRO[codec.name]
        self._launches: dict[Hashable, list[Launch]] = {}

    def buffers(self) -> list[Buffer]:
        return [
            *super().buffers(),
            self.qkv,
            self.gated,
            self.partials,
            self.best,
            self.totals,
            self.cosines,
            self.sines,
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
                    *_pointers(table), address(self.state), address(self.x), address(self.sums),
                    table.k, table.n,
                ),
            )  # fmt: skip

        return self._op("embed", ("embed", n), build, (self.state,), (self.x, self.sums))

    def attn_in(self, layer: int, batch: Batch) -> Op:
        weight, n = self._matrix(f"{layer}.wqkv"), batch.n_rows

        def build() -> Iterator[Launch]:
            yield from self._product(
                weight, n, self.x, self.shapes.d_model, self.qkv, self.qkv_width,
                gain=f"{layer}.attn_norm", then=f"{layer}.wo",
            )  # fmt: skip
            yield self._rotate_encode(n)

        op = self._op(
            f"attn_in {layer}",
            ("attn_in", layer, n),
            build,
            (self.x, self.state),
            (self.q, self.rows, self.qkv),
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
                    view.part_bytes, view.stream_bytes, view.pitch, width, _lane_column(view),
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
        inputs = [self.q, self.state]
        if batch.unified:
            assert self.cells is not None
            inputs.append(self.cells)
        key = ("attend", batch.groups, batch.unified, _key(view))
        op = self._op(
            f"attend {layer}",
            key,
            lambda: self._attention(batch, view),
            (),
            (self.mixed, self.sums, self.partials, self.totals),
        )
        whole = tuple(b.span() for b in inputs)
        op.reads = lambda: (*whole, *window_spans(batch, view))
        op.site, op.split, op.slot = "attend", split, slot
        return op

    def recur(self, layer: int, batch: Batch, state: Span) -> Op:
        weight, n = self._matrix(f"{layer}.w_rec"), batch.n_rows

        def build() -> Iterator[Launch]:
            yield from self._product(
                weight, n, self.x, self.shapes.d_model, self.mixed, self.mixed_width,
                mode="recurrent", gain=f"{layer}.attn_norm", then=f"{layer}.wo",
                memory=address(state.buffer, state.offset),
            )  # fmt: skip

        key = ("recur", layer, n, state.buffer.id, state.offset)
        op = self._op(f"recur {layer}", key, build, (self.x, self.state), (self.mixed,))
        op.reads, op.writes = (*op.spans()[0], state), (*op.spans()[1], state)
        op.nbytes = weight.nbytes
        return op

    def mlp(self, layer: int, batch: Batch) -> Op:
        n, s = batch.n_rows, self.shapes
        wo, down = self._matrix(f"{layer}.wo"), self._matrix(f"{layer}.w_down")
        gate_up = self._matrix(f"{layer}.w_gate_up")

        def build() -> Iterator[Launch]:
            yield from self._product(
                wo, n, self.mixed, self.mixed_width, self.x, s.d_model,
                mode="residual", then=f"{layer}.w_gate_up",
            )  # fmt: skip
            yield from self._product(
                gate_up, n, self.x, s.d_model, self.gated, s.d_ff,
                mode="gated", gain=f"{layer}.ffn_norm", then=f"{layer}.w_down",
            )  # fmt: skip
            yield from self._product(
                down, n, self.gated, s.d_ff, self.x, s.d_model,
                mode="residual", then=f"{layer + 1}.",
            )  # fmt: skip

        op = self._op(
            f"mlp {layer}", ("mlp", layer, n), build, (self.mixed, self.x), (self.x, self.gated)
        )
        op.nbytes = wo.nbytes + gate_up.nbytes + down.nbytes
        return op

    def head(self, batch: Batch) -> Op:
        weight, s = self._matrix("head"), self.shapes

        def build() -> Iterator[Launch]:
            for at, first, count in _runs(batch.outputs):
                yield from self._product(
                    weight, count, self.x, s.d_model, self.logits, s.vocab,
                    gain="final_norm", x_row=first, y_row=at, then="0.",
                )  # fmt: skip

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
    def _after(self, name: str) -> Matrix | None:
        """The weights read after those: ``name``, or what layer "<n>." begins with."""
        if name.endswith("."):
            name = next((name + w for w in ("wqkv", "w_rec") if name + w in self.weights), "head")
        return self._matrix(name) if name in self.weights else None

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

    def _product(
        self,
        weight: Matrix,
        n: int,
        x: Buffer,
        ldx: int,
        y: Buffer,
        ldy: int,
        *,
        mode: str = "plain",
        gain: str | None = None,
        memory: int | None = None,
        x_row: int = 0,
        y_row: int = 0,
        then: str = "",
    ) -> Iterator[Launch]:
        """y[r] = W x[r] of ``n`` rows, 16 at a time."""
        for first in range(0, n, MAX_DECODE_ROWS):
            rows = min(MAX_DECODE_ROWS, n - first)
            yield product_launch(
                weight,
                rows,
                address(x, (x_row + first) * ldx * 4),
                ldx,
                address(y, (y_row + first) * ldy * 4),
                ldy,
                mode=mode,
                gain=address(self.weights[gain]) if gain else None,
                memory=memory,
                state=address(self.state, first * STATE_COLUMNS * 4),
                eps=self.shapes.rms_eps,
                then=self._after(then) if first + rows == n else weight,
            )

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

    def _attention(self, batch: Batch, view: View) -> Iterator[Launch]:
        for start, count, tile in _merged(batch.groups):
            for first in range(start, start + count, self.pass_rows):
                rows = min(self.pass_rows, start + count - first)
                last = start + count - 1 if tile else None
                yield from self._attend_rows(view, first, rows, batch.unified, last)

    def _attend_rows(
        self, view: View, first: int, rows: int, unified: bool, last: int | None
    ) -> Iterator[Launch]:
        """``last``: a tile's last row, whose list of cells all its rows share."""
        s, dim, heads = self.shapes, self.shapes.head_dim, self.shapes.n_heads
        window_rows = self.full_rows if unified else view.stream_bytes // view.pitch
        chunks = min(self.max_chunks, -(-window_rows // CHUNK_ROWS))
        cells, stride = None, 0
        if unified:
            assert self.cells is not None
            cells = address(self.cells, (first if last is None else last) * self.full_rows * 4)
            stride = self.full_rows if last is None else 0
        state = address(self.state, first * STATE_COLUMNS * 4)
        k = address(view.buffer, view.base)
        v, column = k + view.part_bytes, _lane_column(view)
        part_ml = address(self.partials, self.pass_rows * heads * self.max_chunks * dim * 4)
        mixed = address(self.mixed, first * self.mixed_width * 4)
        defines = {"KV": self._kv, "HD": dim, "G": self.group}
        if self.audit:
            audit = arguments.Audit(
                k, v, state, cells, address(self.totals), address(self.sums, first * 8),
                view.stream_bytes, view.pitch, stride, column, rows,
                -1 if last is None else last - first,
            )  # fmt: skip
            table = MACRO[self._matrix("embed").kind]
            windows = function("tokens", "audit_windows", WT=table)
            yield Launch(windows, (AUDIT_BLOCKS, 2, rows), (256,), audit)
            yield Launch(function("tokens", "audit_fold", WT=table), (1,), (MAX_ROWS,), audit)
        pad = 0 if self._kv == "F16" else (-self.kv_width // BLOCK) % 8
        yield Launch(
            function("attend", "attend", **defines),
            (chunks, s.n_kv_heads, rows),
            (attend_threads(dim),),
            arguments.Window(
                k, v, view.stream_bytes, view.pitch, state, cells, stride, column,
                s.n_kv_heads, pad, self.max_chunks, dim**-0.5,
                address(self.q, first * heads * dim * 4), address(self.partials), part_ml,
            ),
            shared=attend_shared(self._kv, dim, self.group),
        )  # fmt: skip
        yield Launch(
            function("attend", "combine", **defines),
            (heads, rows),
            (max(32, min(256, dim)), 4),
            arguments.Combine(
                address(self.partials), part_ml, state, mixed, self.mixed_width, self.max_chunks
            ),
            shared=self.max_chunks * 8,
        )

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


def product_launch(
    weight: Matrix,
    rows: int,
    x: int,
    ldx: int,
    y: int,
    ldy: int,
    *,
    mode: str = "plain",
    gain: int | None = None,
    memory: int | None = None,
    state: int | None = None,
    eps: float = 0.0,
    then: Matrix | None = None,
) -> Launch:
    """One matrix-vector product for 1 to 16 rows; pointers, and strides in floats.

    ``then``: the weights that will be read next.
    """
    variant = next(v for v in ROW_VARIANTS if v >= rows)
    paired = mode in ("gated", "recurrent")
    blocked = weight.kind in ("q8_0", "q4_0")
    if variant < 4:
        warps, per_warp = 16, 2 if paired or weight.kind == "q4_0" else 1
    else:
        warps, per_warp = 8, 2 if blocked and variant > 8 else 4
    chunk = 32 * {"f32": 4, "f16": 8, "q8_0": 16, "q4_0": 32}[weight.kind]
    limit = (32768 if variant < 4 else 16384) // variant
    tile = min(limit, -(-weight.k // chunk) * chunk)
    groups = -(-weight.n // (warps * per_warp))
    # Where x fits at once, a block per multiprocessor stays for all its rows and leaves room for
    # the next kernel's blocks, which fetch their first weights meanwhile.
    blocks = groups if weight.k > limit else min(groups, multiprocessors() * BLOCKS_PER_SM)
    return Launch(
        function("matvec", f"matvec_{mode}", WT=MACRO[weight.kind], ROWS=variant),
        (blocks,),
        (warps * 32,),
        arguments.Mat(
            *_pointers(weight),
            x,
            gain,
            y,
            memory,
            state,
            *_next(then, ldx, ldy),
            weight.k,
            weight.n,
            rows,
            eps,
        ),
        shared=tile * variant * 4,
    )


def attend_threads(head_dim: int) -> int:
    """Threads of a block of the attend kernel."""
    return CHUNK_ROWS * (head_dim // 64 if head_dim in FAST_HEADS else 1)


def attend_shared(kv: str, head_dim: int, group: int) -> int:
    """Dynamic shared memory of the attend kernel: K and V of a chunk, or the sums after them."""
    if head_dim not in FAST_HEADS:
        return 0
    segment = {
        "F16": 2 * head_dim + 16,
        "Q8": head_dim // BLOCK * 34,
        "Q4": head_dim // BLOCK * 18,
    }[kv]
    return max(2 * CHUNK_ROWS * segment, CHUNK_ROWS // 32 * group * head_dim * 4)


def _on_device(array: Any) -> Any:
    import cupy

    return cupy.asarray(array).reshape(-1)


def _pointers(matrix: Matrix) -> tuple[int, int | None]:
    return address(matrix.data), address(matrix.scale) if matrix.scale else None


def _next(then: Matrix | None, ldx: int, ldy: int) -> tuple[int | None, int, int, int, int]:
    """Arguments next, ldx, ldy, next_stride and next_pieces: pieces spread evenly."""
    if then is None or not NEXT_BYTES:
        return None, ldx, ldy, 0, 0
    pieces = min(NEXT_BYTES, then.data.nbytes) // NEXT_PIECE
    stride = then.data.nbytes // max(pieces, 1) // 16 * 16
    return address(then.data), ldx, ldy, stride, pieces


def _lane_column(view: View) -> int:
    return LANE if view.packed else STREAM


def _key(view: View) -> Hashable:
    return (view.buffer.id, view.base, view.part_bytes, view.stream_bytes, view.packed)


def _runs(rows: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(index of the first, first row, count) of each run of consecutive rows."""
    at = 0
    while at < len(rows):
        count = 1
        while at + count < len(rows) and rows[at + count] == rows[at] + count:
            count += 1
        yield at, rows[at], count
        at += count


def _merged(groups: tuple[Group, ...]) -> list[tuple[int, int, bool]]:
    """(first row, count, whether it is a tile), neighbouring single rows taken together."""
    out: list[tuple[int, int, bool]] = []
    for start, count, tile in groups:
        if not tile and out and not out[-1][2] and out[-1][0] + out[-1][1] == start:
            out[-1] = (out[-1][0], out[-1][1] + count, False)
        else:
            out.append((start, count, tile))
    return out
