"""The decode kernels in NumPy, with fixed arithmetic.

A decode row is always computed on its own: one matrix-vector call shape per product, operands in
the same scratch, so that its bits do not depend on the rest of the batch. A prompt tile always has
TILE rows, whatever it holds. BLAS must run with a fixed number of threads (decoder.arithmetic).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvbench.device.kernels import (
    CELL,
    LANE,
    MAX_DECODE_ROWS,
    MAX_ROWS,
    POSITION,
    STATE_COLUMNS,
    STREAM,
    TILE,
    TOKEN,
    Batch,
    Group,
    Kernels,
    Move,
    View,
    row_spans,
    window_spans,
)
from kvbench.device.kvtypes import F32
from kvbench.device.memory import Buffer, Span
from kvbench.device.ops import Op
from kvbench.device.rotary import tables, turn
from kvbench.device.shift import shift_rows, shift_spans

MIX = np.uint64(6364136223846793005)
"""Odd multiplier (Knuth, MMIX) by which an audit sum is mixed before the next window is added."""


def _floats(buffer: Buffer, *shape: int) -> F32:
    floats: F32 = buffer.raw.view(np.float32)
    return floats[: int(np.prod(shape))].reshape(shape)


class CpuKernels(Kernels):
    """See ``Kernels``. Scratch is shared by all operations: they run on one queue, in order."""

    def _open_buffers(self) -> None:
        """Also typed views of them, tables, and scratch."""
        super()._open_buffers()
        s, codec = self.shapes, self.codec
        values, full_rows = codec.values, self.full_rows
        self._state = self.state.raw.view(np.int32)[: MAX_ROWS * STATE_COLUMNS]
        self._state = self._state.reshape(MAX_ROWS, STATE_COLUMNS)
        self._x = _floats(self.x, MAX_ROWS, s.d_model)
        self._q = _floats(self.q, MAX_ROWS, s.n_heads, s.head_dim)
        self._rows = self.rows.raw.reshape(MAX_ROWS, 2, codec.pitch)
        self._mixed = self.mixed.raw.view(np.float32).reshape(MAX_ROWS, -1)
        self._logits = _floats(self.logits, MAX_DECODE_ROWS, s.vocab)
        self._chosen = self.chosen.raw.view(np.int32)
        self._sums = self.sums.raw.view(np.uint64)
        self._cos, self._sin = tables(s, s.context + TILE)
        widest = max((s.n_heads + 2 * s.n_kv_heads) * s.head_dim, 2 * s.d_ff, 2 * s.d_model)
        self._in = np.empty(max(s.d_model, s.d_ff, s.n_heads * s.head_dim), np.float32)
        self._out = np.empty(widest, np.float32)
        self._k = np.empty((full_rows, values), np.float32)
        self._v = np.empty((full_rows, values), np.float32)
        self._weigh = np.arange(1, 2 * full_rows * codec.pitch // 4, 2, dtype=np.uint64)

    # -------------------------------------------------------------- operations
    def embed(self, batch: Batch) -> Op:
        table = self.weights["embed"]

        def run() -> None:
            n = batch.n_rows
            self._x[:n] = table[self._state[:n, TOKEN]]
            self._sums[:n] = 0

        return self._op("embed", run, (self.state,), (self.x, self.sums))

    def attn_in(self, layer: int, batch: Batch, *, place: bool) -> Op:
        norm, product = self.weights[f"{layer}.attn_norm"], self.weights[f"{layer}.wqkv"]
        bias = self.weights.get(f"{layer}.bqkv")
        head_norms = self._head_norms(layer)
        groups = batch.groups

        def run() -> None:
            for group in groups:
                qkv = self._product(product, self._normed(group, norm), group)
                if bias is not None:
                    qkv += bias
                self._split_heads(qkv, group, head_norms)

        return self._op(f"attn_in {layer}", run, (self.x, self.state), (self.q, self.rows))

    def write_rows(
        self, batch: Batch, view: View, *, site: str, split: int = -1, slot: int = -1
    ) -> Op:
        n, width = batch.n_rows, self.codec.row_bytes
        column = LANE if view.packed else STREAM

        def run() -> None:
            target = view.buffer.raw
            for row, state in enumerate(self._state[:n]):
                for part in (0, 1):
                    at = view.row(part, int(state[column]), int(state[CELL]))
                    target[at : at + width] = self._rows[row, part, :width]

        op = self._op(f"{site} {split}", run, (self.rows, self.state), ())
        op.writes = lambda: row_spans(batch, view, width)
        op.site, op.split, op.slot, op.nbytes = site, split, slot, 2 * n * width
        return op

    def attend(
        self, layer: int, batch: Batch, view: View, *, split: int = -1, slot: int = -1
    ) -> Op:
        groups, unified = batch.groups, batch.unified
        column = LANE if view.packed else STREAM
        inputs = [self.q, self.state]
        if self.cells is not None:
            inputs.append(self.cells)

        def run() -> None:
            for group in groups:
                self._attend_group(group, view, column, unified)

        op = self._op(f"attend {layer}", run, (), (self.mixed, self.sums))
        whole = tuple(b.span() for b in inputs)
        if self.audit:
            whole = (*whole, self.sums.span())  # earlier windows' sums go on
        op.reads = lambda: (*whole, *window_spans(batch, view))
        op.site, op.split, op.slot = "attend", split, slot
        return op

    def recur(self, layer: int, batch: Batch, state: Span) -> Op:
        norm, product = self.weights[f"{layer}.attn_norm"], self.weights[f"{layer}.w_rec"]
        d = self.shapes.d_model
        states = state.buffer.raw[state.offset : state.end].view(np.float32).reshape(-1, d)
        groups = batch.groups

        def run() -> None:
            for group in groups:
                both = self._product(product, self._normed(group, norm), group)
                for i in range(group.size):
                    stream = self._state[group.start + i, STREAM]
                    keep = 1 / (1 + np.exp(-both[i, :d]))
                    states[stream] = keep * states[stream] + (1 - keep) * both[i, d:]
                    self._mixed[group.start + i, :d] = states[stream]

        op = self._op(f"recur {layer}", run, (self.x, self.state), (self.mixed,))
        op.reads, op.writes = (*op.spans()[0], state), (*op.spans()[1], state)
        return op

    def mlp(self, layer: int, batch: Batch) -> Op:
        get = self.weights.__getitem__
        wo, norm = get(f"{layer}.wo"), get(f"{layer}.ffn_norm")
        gate_up, down = get(f"{layer}.w_gate_up"), get(f"{layer}.w_down")
        width, f = wo.shape[1], self.shapes.d_ff
        groups = batch.groups

        def run() -> None:
            for group in groups:
                rows = slice(group.start, group.start + group.size)
                mixed = self._mixed[group.start : group.start + _height(group), :width]
                self._x[rows] += self._product(wo, mixed, group)[: group.size]
                both = self._product(gate_up, self._normed(group, norm), group)
                gate, up = both[:, :f], both[:, f:]
                gated = gate / (1 + np.exp(-gate)) * up
                self._x[rows] += self._product(down, gated, group)[: group.size]

        return self._op(f"mlp {layer}", run, (self.mixed, self.x), (self.x,))

    def head(self, batch: Batch) -> Op:
        norm, head = self.weights["final_norm"], self.weights["head"]
        outputs = batch.outputs

        def run() -> None:
            for at, row in enumerate(outputs):
                hidden = self._normed(Group(row, 1, False), norm)
                np.dot(head, hidden[0], out=self._logits[at])

        return self._op("head", run, (self.x,), (self.logits,))

    def choose(self, batch: Batch, *, advance: bool) -> Op:
        outputs = batch.outputs

        def run() -> None:
            for at, row in enumerate(outputs):
                self._chosen[at] = token = np.argmax(self._logits[at])
                if advance:
                    self._state[row, TOKEN] = token
            if advance:
                self._state[: batch.n_rows, POSITION] += 1
                self._state[: batch.n_rows, CELL] += 1

        inputs = (self.logits, self.state) if advance else (self.logits,)
        results = (self.chosen, self.state) if advance else (self.chosen,)
        return self._op("choose", run, inputs, results)

    def shift(self, view: View, moves: Sequence[Move], delta: int) -> Op:
        def run() -> None:
            shift_rows(view.buffer.raw, view, self.codec, self.shapes, moves, delta)

        op = self._op("shift", run, (), ())
        op.reads, op.writes = shift_spans(view, moves)
        op.site = "shift"
        return op

    # ----------------------------------------------------------------- details
    def _op(
        self,
        label: str,
        run: Callable[[], None],
        reads: Sequence[Buffer],
        writes: Sequence[Buffer],
    ) -> Op:
        def quietly(_: Any) -> None:
            with np.errstate(all="ignore"):  # poison is NaN on purpose
                run()

        return Op(
            "kernel",
            label,
            quietly,
            tuple(b.span() for b in reads),
            tuple(b.span() for b in writes),
            site=label.split(" ", 1)[0],
        )

    def _normed(self, group: Group, weight: F32) -> F32:
        """RMS norm of a group's rows: [1, D] in scratch, or [TILE, D]."""
        if group.tile:
            x = self._x[group.start : group.start + TILE].copy()
            x[group.size :] = 0
            scale = 1 / np.sqrt(np.mean(x * x, axis=1) + np.float32(self.shapes.rms_eps))
            normed: F32 = x * scale[:, None] * weight
            return normed
        x = self._in[: self.shapes.d_model]
        x[:] = self._x[group.start]
        mean = np.dot(x, x) / np.float32(len(x))
        x *= 1 / np.sqrt(mean + np.float32(self.shapes.rms_eps))
        x *= weight
        return x[None]

    def _product(self, weight: F32, rows: F32, group: Group) -> F32:
        """``rows`` times ``weight`` transposed: a tile at once, or one row by one gemv."""
        if group.tile:
            return rows @ weight.T
        x = self._in[: weight.shape[1]]
        if rows.ctypes.data != x.ctypes.data:
            x[:] = rows[0]
        return np.dot(weight, x, out=self._out[: len(weight)])[None]

    def _head_norms(self, layer: int) -> F32 | None:
        """Weights by which the normed heads of q, then of k, are scaled: [H + Hkv, hd]."""
        q, k = self.weights.get(f"{layer}.q_norm"), self.weights.get(f"{layer}.k_norm")
        if q is None or k is None:
            return None
        heads = [q] * self.shapes.n_heads + [k] * self.shapes.n_kv_heads
        return np.ascontiguousarray(heads)

    def _split_heads(self, qkv: F32, group: Group, head_norms: F32 | None) -> None:
        s, n, rows = self.shapes, group.size, slice(group.start, group.start + group.size)
        heads = qkv[:n].reshape(n, s.n_heads + 2 * s.n_kv_heads, s.head_dim)
        at = self._state[rows, POSITION]
        turned = heads[:, : s.n_heads + s.n_kv_heads]
        if head_norms is not None:
            mean = np.mean(turned * turned, axis=-1, keepdims=True)
            turned *= 1 / np.sqrt(mean + np.float32(s.rms_eps))
            turned *= head_norms
        turn(turned, self._cos[at], self._sin[at], interleaved=s.rope_interleaved)
        self._q[rows] = heads[:, : s.n_heads]
        k = heads[:, s.n_heads : s.n_heads + s.n_kv_heads].reshape(n, -1)
        v = heads[:, s.n_heads + s.n_kv_heads :].reshape(n, -1)
        self.codec.encode(k, self._rows[rows, 0])
        self.codec.encode(v, self._rows[rows, 1])

    def _attend_group(self, group: Group, view: View, column: int, unified: bool) -> None:
        s, rows = self.shapes, slice(group.start, group.start + group.size)
        state = self._state[rows]
        lane = int(state[0, column])
        n = int(state[:, POSITION].max()) + 1
        keys, values = self._load(view, lane, n, group, unified)
        per = s.n_heads // s.n_kv_heads
        heads = self._q[rows].reshape(group.size, s.n_kv_heads, per, s.head_dim)
        q = heads.transpose(1, 2, 0, 3).reshape(s.n_kv_heads, per * group.size, s.head_dim)
        shape = (n, s.n_kv_heads, s.head_dim)
        scores = np.matmul(q, keys.reshape(shape).transpose(1, 2, 0))
        scores *= np.float32(s.head_dim**-0.5)
        if group.tile:
            later = np.arange(n) > state[:, POSITION, None]
            scores.reshape(s.n_kv_heads, per, group.size, n)[:, :, later] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        total = scores.sum(axis=-1, keepdims=True)
        mixed = np.matmul(scores, values.reshape(shape).transpose(1, 0, 2)) / total
        heads = mixed.reshape(s.n_kv_heads, per, group.size, s.head_dim).transpose(2, 0, 1, 3)
        self._mixed[rows, : s.n_heads * s.head_dim] = heads.reshape(group.size, -1)

    def _load(self, view: View, lane: int, n: int, group: Group, unified: bool) -> tuple[F32, F32]:
        """K and V of the group's first ``n`` positions, decoded into scratch [n, values]."""
        cells: npt.NDArray[np.int32] | None = None
        if unified:
            assert self.cells is not None
            last = group.start + group.size - 1
            cells = self.cells.raw.view(np.int32).reshape(MAX_ROWS, -1)[last, :n]
        loaded = []
        for part, scratch in ((0, self._k), (1, self._v)):
            start = view.row(part, lane, 0)
            if cells is None:
                raw = view.buffer.raw[start : start + n * view.pitch].reshape(n, view.pitch)
            else:
                raw = view.buffer.raw[start : start + view.stream_bytes]
                raw = raw.reshape(-1, view.pitch)[cells]
            self.codec.decode(raw, scratch[:n])
            loaded.append(scratch[:n])
            if self.audit:
                words = np.ascontiguousarray(raw).view(np.uint32).ravel().astype(np.uint64)
                total = np.dot(words, self._weigh[: len(words)])
                sums = self._sums[group.start : group.start + group.size]
                sums[:] = sums * MIX + total
        return loaded[0], loaded[1]


def _height(group: Group) -> int:
    return TILE if group.tile else 1
