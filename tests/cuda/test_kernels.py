"""Each kernel against float64 on fresh random inputs, with poisoned outputs; and its bits.

Batch invariance: a row alone has the bits it has among others. Chunk invariance: a window's
rounding, its stream and the bytes beyond a row's position change nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kvbench.device.cuda import arguments
from kvbench.device.cuda.device import CudaDevice
from kvbench.device.cuda.driver import Launch, function
from kvbench.device.cuda.kernel_set import CudaKernels
from kvbench.device.cuda.products import Product, product_launch
from kvbench.device.cuda.tiles import TileProducts
from kvbench.device.cuda.weights import DeviceWeights, Matrix
from kvbench.device.kernels import (
    CELL,
    LANE,
    MAX_ROWS,
    POSITION,
    STREAM,
    TILE,
    TOKEN,
    Batch,
    Group,
    Shapes,
    View,
    Where,
)
from kvbench.device.kvtypes import Q4_0, Q8_0, KVType, kv_type
from kvbench.device.memory import Buffer
from kvbench.device.ops import Op

pytestmark = pytest.mark.cuda

F64 = npt.NDArray[np.float64]
Rng = np.random.Generator


@pytest.fixture
def rng() -> Rng:
    return np.random.default_rng()  # fresh inputs at every run; a failure prints its arrays


def decoded(array: Any, kind: str) -> F64:
    """The weights a device product really uses, in float64."""
    if kind == "f32":
        return np.asarray(array, np.float64)
    if kind == "f16":
        return np.asarray(array.astype(np.float16), np.float64)
    codec: KVType = (Q8_0 if kind == "q8_0" else Q4_0)(array.shape[1])
    raw = np.zeros((len(array), codec.pitch), np.uint8)
    codec.encode(array, raw)
    out = np.empty(array.shape, np.float32)
    codec.decode(raw, out)
    return out.astype(np.float64)


def relative(got: Any, want: Any) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def put(buffer: Buffer, array: Any, offset: int = 0) -> None:
    flat = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    if buffer.space == "device":
        buffer.raw[offset : offset + len(flat)].set(flat)
    else:
        buffer.raw[offset : offset + len(flat)] = flat


def get(buffer: Buffer, dtype: Any, *shape: int) -> Any:
    raw = buffer.raw.get() if buffer.space == "device" else buffer.raw.copy()
    return raw.view(dtype)[: int(np.prod(shape))].reshape(shape)


def run(device: CudaDevice, *ops: Op) -> None:
    queue = device.queues.get(f"{device.name}/test") or device.queue("test")
    for op in ops:
        device.submit(queue, op)
    device.synchronize(queue, "test")


# ------------------------------------------------------------------- products
class Operands:
    """A matrix W [n, k] of ``kind``, a gain, rows of x, and memory for y, full of NaN."""

    def __init__(self, device: CudaDevice, rng: Rng, kind: Any, n: int, k: int, x: Any) -> None:
        array = rng.standard_normal((n, k), np.float32)
        gain = rng.standard_normal(k, np.float32)
        self.device, self.n, self.k = device, n, k
        self.weights = DeviceWeights(device, kind)
        self.weights.upload("w", array)
        self.weights.upload("g", gain)
        self.weights.finish()
        w, g = self.weights["w"], self.weights["g"]
        assert isinstance(w, Matrix) and isinstance(g, Buffer)
        self.ldx, self.ldy = x.shape[1], n + 4
        self.x, self.y = device.alloc("x", x.nbytes), device.alloc("y", len(x) * self.ldy * 4)
        put(self.x, x)
        self.plain = Product(
            w, self.x.raw.data.ptr, self.ldx, self.y.raw.data.ptr, self.ldy, eps=1e-5
        )
        self.gained = replace(self.plain, gain=g.raw.data.ptr)
        exact = x[:, :k].astype(np.float64)
        scaled = exact / np.sqrt(np.mean(exact**2, axis=1, keepdims=True) + 1e-5) * gain
        self.cases = [
            (self.plain, exact @ decoded(array, kind).T),
            (self.gained, scaled @ decoded(array, kind).T),
        ]
        """Products and what they should give in float64."""

    def run(self, launches: Iterable[Launch], rows: int) -> Any:
        """y, of which only [rows, n] was written."""
        self.device._runtime.memset(self.y.raw.data.ptr, 0xFF, self.y.nbytes)
        for launch in launches:
            launch(0)
        self.device._runtime.deviceSynchronize()
        y = get(self.y, np.float32, self.y.nbytes // 4 // self.ldy, self.ldy)
        assert np.isnan(y[rows:]).all() and np.isnan(y[:, self.n :]).all()
        return y[:rows, : self.n].copy()

    def decode(self, product: Product, rows: int, first: int = 0) -> Any:
        """By the kernel of decode rows."""
        moved = replace(product, x=product.x + first * self.ldx * 4)
        return self.run([product_launch(moved, rows)], rows)

    def close(self) -> None:
        for buffer in (self.x, self.y):
            self.device.free(buffer)
        self.weights.close()


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0", "f32"])
@pytest.mark.parametrize(
    "n,k",
    [(576, 576), (100, 1536), (4096, 4096), (72, 28672), (2048, 5120), (4700, 6176), (7, 1056),
     (1, 32)],
)  # fmt: skip
def test_product(device: CudaDevice, rng: Rng, kind: Any, n: int, k: int) -> None:
    operands = Operands(device, rng, kind, n, k, rng.standard_normal((16, k), np.float32))
    for product, want in operands.cases:
        alone = np.concatenate([operands.decode(product, 1, r) for r in range(16)])
        assert relative(alone, want) < 2e-6 * np.sqrt(k / 576)
        for rows in (2, 3, 5, 8, 16):
            together = operands.decode(product, rows)
            np.testing.assert_array_equal(together.view(np.uint32), alone[:rows].view(np.uint32))
    operands.close()


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0", "f32"])
@pytest.mark.parametrize("half,k", [(33, 32), (2049, 1056), (4096, 4096)])
def test_recurrent_product(device: CudaDevice, rng: Rng, kind: Any, half: int, k: int) -> None:
    """Pairs of rows n and n + N/2, also where no two pairs of a warp are neighbours' (odd N/2)."""
    x = rng.standard_normal((3, k), np.float32)
    operands = Operands(device, rng, kind, 2 * half, k, x)
    held = rng.standard_normal((5, half), np.float32)
    state = np.zeros((3, 8), np.int32)
    state[:, STREAM] = streams = [4, 0, 2]
    memory, states = device.alloc("memory", held.nbytes), device.alloc("state", state.nbytes)
    put(memory, held)
    put(states, state)
    product = replace(
        operands.plain, mode="recurrent", memory=memory.raw.data.ptr, state=states.raw.data.ptr
    )
    device._runtime.memset(operands.y.raw.data.ptr, 0xFF, operands.y.nbytes)
    keep, new = np.split(operands.cases[0][1], 2, axis=1)
    keep = 1 / (1 + np.exp(-keep))
    want = keep * held[streams] + (1 - keep) * new
    product_launch(product, 3)(0)
    device._runtime.deviceSynchronize()
    mixed = get(operands.y, np.float32, 3, operands.ldy)
    after = get(memory, np.float32, 5, half)
    assert relative(mixed[:, :half], want) < 2e-6 * np.sqrt(max(k, 576) / 576)
    assert np.isnan(mixed[:, half:]).all()
    np.testing.assert_array_equal(after[streams], mixed[:, :half])
    np.testing.assert_array_equal(after[[1, 3]], held[[1, 3]])
    for buffer in (memory, states):
        device.free(buffer)
    operands.close()


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize(
    "n,k", [(576, 576), (100, 1536), (160, 1056), (33, 32), (4096, 4096), (72, 28672), (2048, 5120)]
)
def test_tile_product(device: CudaDevice, rng: Rng, kind: Any, n: int, k: int) -> None:
    """Float32's precision on tensor cores; a row's bits, wherever it stands in whichever tile."""
    x = np.full((TILE, k + 8), np.nan, np.float32)
    x[:, :k] = rng.standard_normal((TILE, k), np.float32)
    x[7] *= np.float32(1e-10)  # far from float16's range
    x[9] *= np.float32(1e10)
    x[11, :k] *= np.exp(4 * rng.standard_normal(k)).astype(np.float32)
    operands = Operands(device, rng, kind, n, k, x)
    products = TileProducts(device, [operands.plain.weight])

    def tile(product: Product, rows: int, first: int) -> Any:
        moved = replace(product, x=product.x + first * operands.ldx * 4)
        return operands.run(products.launches(moved, rows), rows)

    for product, want in operands.cases:
        whole = tile(product, TILE, 0)
        for mine, row in zip(whole, want, strict=True):
            assert relative(mine, row) < 2e-6 * np.sqrt(max(k, 576) / 576)
        for rows, first in ((1, 0), (1, 63), (5, 20), (16, 7), (33, 2), (63, 1)):
            part = tile(product, rows, first)
            np.testing.assert_array_equal(
                part.view(np.uint32), whole[first : first + rows].view(np.uint32)
            )
    for buffer in products.buffers():
        device.free(buffer)
    operands.close()


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0", "f32"])
def test_drawn_weights_are_the_hosts(device: CudaDevice, kind: Any) -> None:
    """A model drawn on the device is the one the cpu device draws."""
    from kvbench.decoder import synthetic

    config, seed = synthetic.parse("synthetic:small")
    weights = DeviceWeights(device, kind)
    for name in ("0.wqkv", "0.attn_norm", "head"):
        want = synthetic.make_tensor(config, seed, name)
        synthetic_draw(weights, config, seed, name)
        weights.upload("copy", want)
        weights.finish()
        drawn, copy = weights[name], weights["copy"]
        if isinstance(drawn, Buffer):
            assert isinstance(copy, Buffer)
            np.testing.assert_array_equal(get(drawn, np.float32, *want.shape), want)
            continue
        assert isinstance(copy, Matrix)
        for mine, theirs in ((drawn.data, copy.data), (drawn.scale, copy.scale)):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                np.testing.assert_array_equal(mine.raw.get(), theirs.raw.get())
        if kind == "f32":
            np.testing.assert_array_equal(get(drawn.data, np.float32, *want.shape), want)
    weights.close()


def synthetic_draw(weights: DeviceWeights, config: Any, seed: int, name: str) -> None:
    from kvbench.decoder.device_weights import draw_on_device

    draw_on_device(weights, config, seed, name)


# -------------------------------------------------------------- a set of ops
def shapes_of(head_dim: int, group: int, n_kv: int = 2, **changes: Any) -> Shapes:
    heads = group * n_kv
    fields: dict[str, Any] = {
        "d_model": 256, "n_heads": heads, "n_kv_heads": n_kv, "head_dim": head_dim, "d_ff": 512,
        "vocab": 1000, "context": 4096, "rms_eps": 1e-5, "rope_theta": 10000.0,
        "rope_interleaved": False, "rope_dim": head_dim,
    }  # fmt: skip
    return Shapes(**(fields | changes))


def host_weights(shapes: Shapes, rng: Rng) -> dict[str, Any]:
    s, d = shapes, shapes.d_model
    sizes = {
        "embed": (s.vocab, d), "head": (s.vocab, d), "final_norm": (d,), "0.attn_norm": (d,),
        "0.wqkv": ((s.n_heads + 2 * s.n_kv_heads) * s.head_dim, d), "0.ffn_norm": (d,),
        "0.wo": (d, s.n_heads * s.head_dim), "0.w_gate_up": (2 * s.d_ff, d),
        "0.w_down": (d, s.d_ff), "1.attn_norm": (d,), "1.w_rec": (2 * d, d), "1.wo": (d, d),
    }  # fmt: skip
    return {
        name: (rng.standard_normal(size, np.float32) / np.float32(np.sqrt(size[-1])))
        if len(size) == 2
        else rng.uniform(0.5, 1.5, size).astype(np.float32)
        for name, size in sizes.items()
    }


@pytest.fixture
def make_kernels(device: CudaDevice, rng: Rng) -> Iterator[Any]:
    made: list[CudaKernels] = []

    def make(
        shapes: Shapes, kv: str, *, kind: Any = "f32", audit: bool = False, full_rows: int = 1024
    ) -> Any:
        arrays = host_weights(shapes, rng)
        weights = DeviceWeights(device, kind)
        for name, array in arrays.items():
            weights.upload(name, array)
        weights.finish()
        codec = kv_type(kv, n_kv_heads=shapes.n_kv_heads, head_dim=shapes.head_dim)
        kernels = CudaKernels(device, shapes, weights, codec, full_rows=full_rows, audit=audit)
        made.append(kernels)
        return kernels, arrays

    yield make
    for kernels in made:
        for buffer in kernels.buffers():
            device.free(buffer)


def decode_batch(n: int, streams: list[int] | None = None) -> Batch:
    where = [Where(s, i, 0) for i, s in enumerate(streams or range(n))]
    return Batch(tuple(Group(i, 1, False) for i in range(n)), tuple(range(n)), where=where)


def set_state(kernels: CudaKernels, **columns: Any) -> None:
    state = np.zeros((MAX_ROWS, 8), np.int32)
    names = {"token": TOKEN, "position": POSITION, "cell": CELL, "stream": STREAM, "lane": LANE}
    for name, values in columns.items():
        state[: len(values), names[name]] = values
    put(kernels.state, state)


ATTENTION = [
    (kv, dim, group)
    for kv in ("f16", "q8_0", "q4_0")
    for dim, group in ((64, 3), (128, 4), (256, 6), (128, 8), (32, 4))
] + [("f16", 16, 2)]


@pytest.mark.parametrize("kv,dim,group", ATTENTION)
def test_attend(
    device: CudaDevice, rng: Rng, make_kernels: Any, kv: str, dim: int, group: int
) -> None:
    """H5, H7, T17a: rows by index, whole blocks, the same bits whatever lies around a row."""
    shapes = shapes_of(dim, group, n_kv=3)
    kernels, _ = make_kernels(shapes, kv)
    codec, heads = kernels.codec, shapes.n_heads
    positions = np.array([0, 1, 127, 128, 300, 511, 5, 700], np.int32)
    n, capacity = len(positions), 768
    values = rng.standard_normal((2, n, capacity, codec.values), np.float32)
    raw = np.zeros((2, n, capacity, codec.pitch), np.uint8)
    for part in (0, 1):
        codec.encode(values[part].reshape(-1, codec.values), raw[part].reshape(-1, codec.pitch))
    exact = np.empty_like(values)
    for part in (0, 1):
        codec.decode(raw[part].reshape(-1, codec.pitch), exact[part].reshape(-1, codec.values))
    for r, position in enumerate(positions):
        raw[:, r, position + 1 :] = 0xFF  # NaN beyond each row's own end
    q = rng.standard_normal((n, heads, dim), np.float32)
    put(kernels.q, q)
    want = reference_attention(q, exact, positions, shapes)

    def attend(rows: list[int], window: Any, capacity: int) -> Any:
        buffer = device.alloc("window", window.nbytes)
        put(buffer, window)
        part, stream = window.nbytes // 2, capacity * codec.pitch
        view = View(buffer, 0, part, stream, codec.pitch, packed=True)
        set_state(kernels, position=positions[rows], lane=rows)
        put(kernels.q, q[rows])
        device._runtime.memset(kernels.mixed.raw.data.ptr, 0xFF, kernels.mixed.nbytes)
        batch = decode_batch(len(rows))
        batch.where = [Where(0, lane, int(positions[lane])) for lane in rows]
        run(device, kernels.attend(0, batch, view))
        device.free(buffer)
        return get(kernels.mixed, np.float32, MAX_ROWS, kernels.mixed_width)[
            : len(rows), : heads * dim
        ].reshape(len(rows), heads, dim)

    together = attend(list(range(n)), raw, capacity)
    assert relative(together, want) < 3e-6
    for r in range(n):  # alone
        np.testing.assert_array_equal(attend([r], raw, capacity)[0], together[r])
    wider = np.full((2, n, 1024, codec.pitch), 0xFF, np.uint8)
    wider[:, :, :capacity] = raw
    np.testing.assert_array_equal(attend(list(range(n)), wider, 1024), together)


def reference_attention(q: Any, kv: Any, positions: Any, shapes: Shapes) -> F64:
    out = np.empty(q.shape, np.float64)
    group = shapes.n_heads // shapes.n_kv_heads
    for r, position in enumerate(positions):
        k, v = (
            kv[p, r, : position + 1].astype(np.float64).reshape(-1, shapes.n_kv_heads, q.shape[2])
            for p in (0, 1)
        )
        for h in range(shapes.n_heads):
            scores = k[:, h // group] @ q[r, h].astype(np.float64) * q.shape[2] ** -0.5
            weights = np.exp(scores - scores.max())
            out[r, h] = weights @ v[:, h // group] / weights.sum()
    return out


LONG = [("f16", 128, 4), ("q8_0", 256, 6), ("q4_0", 64, 3), ("q8_0", 32, 2)]


@pytest.mark.parametrize("kv,dim,group", LONG)
def test_attend_over_long_windows(
    device: CudaDevice, rng: Rng, make_kernels: Any, kv: str, dim: int, group: int
) -> None:
    """Spans of several chunks, and of one and a bit: from 4,096 rows on there are 64 of them."""
    shapes = shapes_of(dim, group, n_kv=1)
    positions = np.array([2100, 4094, 4095, 4096, 8191, 8192, 12000], np.int32)
    n, capacity = len(positions), 12288
    kernels, _ = make_kernels(shapes, kv, full_rows=capacity)
    codec = kernels.codec
    values = rng.standard_normal((2, 1, capacity, codec.values), np.float32)
    raw = np.zeros((2, capacity, codec.pitch), np.uint8)
    exact = np.empty_like(values)
    for part in (0, 1):
        codec.encode(values[part, 0], raw[part])
        codec.decode(raw[part], exact[part, 0])
    raw[:, positions[-1] + 1 :] = 0xFF
    q = rng.standard_normal((n, shapes.n_heads, dim), np.float32)
    window = device.alloc("window", raw.nbytes)
    put(window, raw)
    put(kernels.q, q)
    set_state(kernels, position=positions)
    view = View(window, 0, raw.nbytes // 2, raw.nbytes // 2, codec.pitch, packed=True)
    batch = Batch(tuple(Group(i, 1, False) for i in range(n)), tuple(range(n)))
    batch.where = [Where(0, 0, int(p)) for p in positions]
    run(device, kernels.attend(0, batch, view))
    mixed = get(kernels.mixed, np.float32, MAX_ROWS, kernels.mixed_width)
    want = reference_attention(q, exact.repeat(n, axis=1), positions, shapes)
    for r in range(n):
        got = mixed[r, : shapes.n_heads * dim].reshape(shapes.n_heads, dim)
        assert relative(got, want[r]) < 5e-6, positions[r]
    device.free(window)


MAKING = [
    (kv, dim, group)
    for kv in ("f16", "q8_0", "q4_0")
    for dim, group in ((64, 3), (128, 4), (256, 6), (64, 12))
]


@pytest.mark.parametrize("audit", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kv,dim,group", MAKING)
def test_attention_makes_rows(
    device: CudaDevice,
    rng: Rng,
    make_kernels: Any,
    kv: str,
    dim: int,
    group: int,
    interleaved: bool,
    audit: bool,
) -> None:
    """Rows made on the way have the bytes of rows made first, in the window and for the store, and
    attention over them the same bits (H8), whether a head's last block combines its spans or not.
    """
    n_kv, full, lanes = 3, 2048, [3, 0, 4, 1, 2]
    changes = {"rope_interleaved": interleaved, "rope_dim": dim if interleaved else dim // 2}
    kernels, _ = make_kernels(
        shapes_of(dim, group, n_kv=n_kv, **changes), kv, audit=audit, full_rows=full
    )
    codec, n, width = kernels.codec, len(lanes), kernels.shapes.n_heads * dim
    put(kernels.x, rng.standard_normal((n, kernels.shapes.d_model), np.float32))

    def attended(capacity: int, positions: list[int], first: bool) -> dict[str, Any]:
        batch = decode_batch(n)
        batch.where = [Where(r, lanes[r], p) for r, p in enumerate(positions)]
        window = device.alloc("window", originals[capacity].nbytes)
        put(window, originals[capacity])
        view = View(window, 0, window.nbytes // 2, capacity * codec.pitch, codec.pitch, packed=True)
        set_state(kernels, position=positions, cell=positions, stream=range(n), lane=lanes)
        put(kernels.sums, np.zeros(MAX_ROWS, np.uint64))
        for buffer in (kernels.q, kernels.rows, kernels.mixed, kernels.qkv):
            put(buffer, np.full(buffer.nbytes, 0xFF, np.uint8))
        run(device, kernels.attn_in(0, batch, place=not first))
        if first:
            run(device, kernels.write_rows(batch, view, site="place"))
            run(device, kernels.attend(0, batch, view))
        else:
            (op,) = kernels.place_and_attend(0, batch, view)
            run(device, op)
        rows = get(kernels.rows, np.uint8, n, 2, codec.pitch)[:, :, : codec.row_bytes]
        mixed = get(kernels.mixed, np.uint32, MAX_ROWS, kernels.mixed_width)[:n, :width]
        found = {
            "window": window.raw.get(), "rows": rows.copy(), "mixed": mixed.copy(),
            "sums": get(kernels.sums, np.uint64, MAX_ROWS)[:n].copy(),
        }  # fmt: skip
        device.free(window)
        return found

    originals = {}
    for capacity, positions in (
        (64, [0, 1, 62, 63, 31]),
        (1024, [0, 63, 64, 1000, 1023]),  # as many spans as are combined at once
        (full, [1024, 127, 2047, 2000, 64]),
    ):
        raw = np.zeros((2, n, capacity, codec.pitch), np.uint8)
        for part in (0, 1):
            values = rng.standard_normal((n * capacity, codec.values), np.float32)
            codec.encode(values, raw[part].reshape(-1, codec.pitch))
        for r, p in enumerate(positions):  # what is there of its own row is not read, nor beyond
            raw[:, lanes[r], p, : codec.row_bytes] = 0xFF
            raw[:, lanes[r], p + 1 :] = 0xFF
        originals[capacity] = raw
        want, got = attended(capacity, positions, True), attended(capacity, positions, False)
        assert np.isfinite(want["mixed"].view(np.float32)).all()
        for name in want:
            np.testing.assert_array_equal(got[name], want[name], err_msg=f"{name}, {capacity}")


def test_rows_of_one_stream_are_made_first(device: CudaDevice, make_kernels: Any) -> None:
    """A row that attends to another of its batch must find it in the window."""
    kernels, _ = make_kernels(shapes_of(64, 3), "f16")
    part = 2 * 64 * kernels.codec.pitch
    window = device.alloc("window", 2 * part)
    view = View(window, 0, part, part // 2, kernels.codec.pitch, packed=True)
    batch = decode_batch(2, [0, 0])
    assert [op.site for op in kernels.place_and_attend(0, batch, view)] == ["place", "attend"]
    batch.where = [Where(0, 0, 5), Where(1, 1, 5)]
    assert [op.site for op in kernels.place_and_attend(0, batch, view)] == ["attend"]
    device.free(window)


@pytest.mark.parametrize("embedded", [True, False])
def test_what_attention_reads_early_is_complete(
    device: CudaDevice, rng: Rng, make_kernels: Any, embedded: bool
) -> None:
    """It reads the window before it waits for the kernel before it. That is right behind the
    embedding, which lets nothing begin before all that was queued earlier has ended, and wrong
    without it: a planted fault, so that this test is known to see one."""
    kernels, _ = make_kernels(shapes_of(64, 3), "f16")
    codec, capacity, position = kernels.codec, 256, 200
    right = rng.standard_normal((2, capacity, codec.values), np.float32).astype(np.float16)
    put(kernels.x, rng.standard_normal((1, kernels.shapes.d_model), np.float32))
    part = capacity * codec.pitch
    window, source = device.alloc("window", 2 * part), device.alloc("source", 2 * part)
    view = View(window, 0, part, part, codec.pitch, packed=True)
    set_state(kernels, token=[3], position=[position], cell=[position])
    batch = decode_batch(1)
    batch.where = [Where(0, 0, position)]
    zero = device.alloc("zero", 32)
    put(source, right)
    put(zero, np.zeros(8, np.int32))
    fill = Launch(
        function("rows", "put_rows", KV="F16"),
        (2, 1),
        (128,),
        arguments.Put(
            source.raw.data.ptr, window.raw.data.ptr, zero.raw.data.ptr, part, 0, part, part, 3
        ),
    )
    spin = Launch(function("tokens", "spin", WT="F32"), (1,), (1,), ctypes.c_uint64(5_000_000))
    queue = device.queue("early")

    def fill_late(stream: Any) -> None:
        spin(stream.ptr)
        fill(stream.ptr)

    def mixed(late: bool) -> Any:
        put(window, np.zeros_like(right) if late else right)
        run(device, kernels.embed(batch), kernels.attn_in(0, batch, place=True))
        work = [Op("kernel", "late", fill_late)] if late else []
        work += [kernels.embed(batch)] if embedded else []
        for op in (*work, *kernels.place_and_attend(0, batch, view)):
            device.submit(queue, op)
        device.synchronize(queue, "test")
        return get(kernels.mixed, np.uint32, MAX_ROWS, kernels.mixed_width)[0].copy()

    equal = (mixed(late=True) == mixed(late=False)).all()
    assert equal == embedded
    for buffer in (window, source, zero):
        device.free(buffer)


@pytest.mark.parametrize("kv", ["f16", "q8_0", "q4_0"])
def test_attend_by_cells_and_tiles(
    device: CudaDevice, rng: Rng, make_kernels: Any, kv: str
) -> None:
    """A unified cache's index list, and a prefill tile, give a row the bits of plain decode."""
    shapes = shapes_of(64, 3, n_kv=3)
    kernels, _ = make_kernels(shapes, kv, audit=True)
    codec, rows, base = kernels.codec, 20, 250
    total = base + rows
    plain = np.zeros((2, total, codec.pitch), np.uint8)
    for part in (0, 1):
        codec.encode(rng.standard_normal((total, codec.values), np.float32), plain[part])
    order = rng.permutation(1024)[:total].astype(np.int32)
    mixed_up = np.full((2, 1024, codec.pitch), 0xFF, np.uint8)
    mixed_up[:, order] = plain
    q = rng.standard_normal((rows, shapes.n_heads, 64), np.float32)
    put(kernels.q, q)
    put(kernels.with_cells(), np.tile(np.pad(order, (0, 1024 - total)), (MAX_ROWS, 1)))
    set_state(kernels, position=np.arange(base, total))

    def attend(window: Any, groups: tuple[Group, ...], unified: bool) -> tuple[Any, Any]:
        buffer = device.alloc("window", window.nbytes)
        put(buffer, window)
        view = View(buffer, 0, window.nbytes // 2, window.nbytes // 2, codec.pitch, packed=False)
        batch = Batch(groups, (), unified, [Where(0, 0, base + i) for i in range(rows)])
        put(kernels.sums, np.zeros(MAX_ROWS, np.uint64))
        run(device, kernels.attend(0, batch, view))
        device.free(buffer)
        width = shapes.n_heads * 64
        mixed = get(kernels.mixed, np.uint32, MAX_ROWS, kernels.mixed_width)[:rows, :width]
        return mixed.copy(), get(kernels.sums, np.uint64, MAX_ROWS)[:rows].copy()

    singles = tuple(Group(i, 1, False) for i in range(rows))
    tile = (Group(0, rows, True),)
    want, sums = attend(plain, singles, False)
    np.testing.assert_array_equal(sums, [audit_sum(plain, base + i + 1) for i in range(rows)])
    for window, groups, unified in (
        (plain, tile, False),
        (mixed_up, singles, True),
        (mixed_up, tile, True),
    ):
        got, got_sums = attend(window, groups, unified)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(got_sums, sums if groups is singles else sums[-1:].repeat(20))


def audit_sum(window: Any, rows: int) -> int:
    total = 0
    for part in (0, 1):
        words = window[part, :rows].reshape(-1).view(np.uint32).astype(object)
        weigh = range(1, 2 * len(words), 2)
        total = (total * 6364136223846793005 + int(np.dot(words, np.array(weigh, object)))) % 2**64
    return total


@pytest.mark.parametrize("kv", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rows_in(
    device: CudaDevice, rng: Rng, make_kernels: Any, kv: str, interleaved: bool
) -> None:
    """H8: one encoding, the bytes of the project's codec; padding zero, and never copied."""
    from kvbench.device.rotary import tables, turn

    shapes = shapes_of(64, 3, n_kv=3, rope_interleaved=interleaved, rope_dim=32)
    kernels, arrays = make_kernels(shapes, kv)
    codec, n, d = kernels.codec, 5, shapes.d_model
    x = rng.standard_normal((n, d), np.float32)
    positions = np.array([0, 3, 900, 17, 64], np.int32)
    put(kernels.x, x)
    put(kernels.rows, np.full(kernels.rows.nbytes, 0xFF, np.uint8))
    cells = np.array([2, 0, 7, 1, 5], np.int32)
    set_state(kernels, position=positions, cell=cells, stream=[4, 3, 2, 1, 0], lane=range(n))
    batch = decode_batch(n, [4, 3, 2, 1, 0])
    batch.where = [Where(4 - i, i, int(cells[i])) for i in range(n)]
    run(device, kernels.attn_in(0, batch, place=False))
    norm = x.astype(np.float64)
    norm = norm / np.sqrt(np.mean(norm**2, axis=1, keepdims=True) + 1e-5) * arrays["0.attn_norm"]
    qkv = get(kernels.qkv, np.float32, n, kernels.qkv_width)
    assert relative(qkv, norm @ arrays["0.wqkv"].astype(np.float64).T) < 3e-6
    heads = qkv.reshape(n, -1, 64).copy()
    turned = shapes.n_heads + shapes.n_kv_heads
    cos, sin = (t[positions] for t in tables(shapes, 1024))
    turn(heads[:, :turned], cos, sin, interleaved=interleaved)
    np.testing.assert_array_equal(
        get(kernels.q, np.float32, n, shapes.n_heads, 64), heads[:, : shapes.n_heads]
    )
    want = np.zeros((n, 2, codec.pitch), np.uint8)
    codec.encode(heads[:, shapes.n_heads : turned].reshape(n, -1), want[:, 0])
    codec.encode(heads[:, turned:].reshape(n, -1), want[:, 1])
    np.testing.assert_array_equal(get(kernels.rows, np.uint8, n, 2, codec.pitch), want)
    for space, packed, pinned in (
        ("device", True, True), ("device", False, True), ("host", False, True),
        ("host", False, False),
    ):  # fmt: skip
        part = n * 8 * codec.pitch
        target = device.alloc("target", 2 * part + 256, space, pinned=pinned)  # type: ignore[arg-type]
        put(target, np.full(target.nbytes, 0xAB, np.uint8))
        view = View(target, 256, part, 8 * codec.pitch, codec.pitch, packed)
        run(device, kernels.write_rows(batch, view, site="store"))
        expected = np.full((2, n, 8, codec.pitch), 0xAB, np.uint8)
        for r in range(n):
            lane = r if packed else 4 - r
            expected[:, lane, cells[r], : codec.row_bytes] = want[r, :, : codec.row_bytes]
        got = get(target, np.uint8, target.nbytes)
        assert (got[:256] == 0xAB).all()
        np.testing.assert_array_equal(got[256:].reshape(expected.shape), expected)
        device.free(target)


def test_choose(device: CudaDevice, rng: Rng, make_kernels: Any) -> None:
    """NumPy's argmax: the first of equals, NaN above all; only the outputs' tokens move (H20)."""
    kernels, _ = make_kernels(shapes_of(64, 3), "f16")
    n, vocab = 16, kernels.shapes.vocab
    logits = rng.standard_normal((n, vocab), np.float32)
    logits[3, [10, 900]] = 50.0
    logits[4, [700, 20]] = np.nan
    logits[5] = -np.inf
    put(kernels.logits, logits)
    set_state(kernels, token=range(n + 2), position=range(n + 2), cell=range(5, n + 7))
    batch = decode_batch(n + 2)
    batch.outputs = tuple(range(2, n + 2))
    run(device, kernels.choose(batch, advance=True))
    want = logits.argmax(axis=1)
    np.testing.assert_array_equal(get(kernels.chosen, np.int32, n), want)
    state = get(kernels.state, np.int32, MAX_ROWS, 8)[: n + 2]
    np.testing.assert_array_equal(state[:, TOKEN], [0, 1, *want])
    np.testing.assert_array_equal(state[:, POSITION], np.arange(1, n + 3))
    np.testing.assert_array_equal(state[:, CELL], np.arange(6, n + 8))


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("tile", [False, True])
def test_layers(device: CudaDevice, rng: Rng, make_kernels: Any, kind: Any, tile: bool) -> None:
    """Embedding, recurrent mixing, the MLP and the head, against float64.

    ``tile``: most of the rows are a prefill tile's, behind decode rows.
    """
    shapes = shapes_of(64, 3)
    kernels, arrays = make_kernels(shapes, "f16", kind=kind)
    w = {name: decoded(a, kind) if a.ndim == 2 else a for name, a in arrays.items()}
    n, d = 20, shapes.d_model
    tokens = rng.integers(0, shapes.vocab, n)
    streams = np.array([*range(16), 3, 3, 0, 9], np.int32)  # rows of one stream follow each other
    set_state(kernels, token=tokens, stream=streams, lane=range(n))
    batch = decode_batch(n)
    if tile:
        batch.groups = (*batch.groups[:3], Group(3, n - 3, True))
    run(device, kernels.embed(batch))
    x = get(kernels.x, np.float32, n, d)
    np.testing.assert_array_equal(x, w["embed"][tokens].astype(np.float32))

    def norm(x: F64, gain: Any) -> F64:
        scaled: F64 = x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + 1e-5) * gain
        return scaled

    states = rng.standard_normal((16, d), np.float32)
    memory = device.alloc("memory", states.nbytes)
    put(memory, states)
    run(device, kernels.recur(1, batch, memory.span()))
    both = norm(x.astype(np.float64), w["1.attn_norm"]) @ w["1.w_rec"].T
    held, mixed = states.astype(np.float64), np.empty((n, d))
    for r in range(n):
        keep = 1 / (1 + np.exp(-both[r, :d]))
        held[streams[r]] = mixed[r] = keep * held[streams[r]] + (1 - keep) * both[r, d:]
    assert relative(get(memory, np.float32, 16, d), held) < 3e-6
    assert relative(get(kernels.mixed, np.float32, n, kernels.mixed_width)[:, :d], mixed) < 3e-6

    attended = rng.standard_normal((n, kernels.mixed_width), np.float32)
    put(kernels.mixed, attended)
    run(device, kernels.mlp(0, batch))
    after = x + attended[:, : shapes.n_heads * 64].astype(np.float64) @ w["0.wo"].T
    gate, up = np.split(norm(after, w["0.ffn_norm"]) @ w["0.w_gate_up"].T, 2, axis=1)
    after += (gate / (1 + np.exp(-gate)) * up) @ w["0.w_down"].T
    assert relative(get(kernels.x, np.float32, n, d), after) < 3e-6

    batch.outputs = (0, 1, 2, 7, 19)
    run(device, kernels.head(batch))
    want = norm(after, w["final_norm"])[list(batch.outputs)] @ w["head"].T
    assert relative(get(kernels.logits, np.float32, 5, shapes.vocab), want) < 3e-6
    device.free(memory)


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "q4_0"])
def test_decode_rows_beside_a_tile(
    device: CudaDevice, rng: Rng, make_kernels: Any, kind: Any
) -> None:
    """T20: decode rows have the bits that they have alone, and so have the rows of a tile."""
    kernels, _ = make_kernels(shapes_of(64, 3), "f16", kind=kind)
    singles, rows, d = 3, 30, kernels.shapes.d_model
    x = rng.standard_normal((singles + rows, d), np.float32)
    mixed = rng.standard_normal((singles + rows, kernels.mixed_width), np.float32)

    def mlp(first: int, *groups: Group) -> Any:
        put(kernels.x, x[first:])
        put(kernels.mixed, mixed[first:])
        batch = Batch(groups, ())
        run(device, kernels.mlp(0, batch))
        return get(kernels.x, np.uint32, batch.n_rows, d).copy()

    alone = tuple(Group(i, 1, False) for i in range(singles))
    both = mlp(0, *alone, Group(singles, rows, True))
    np.testing.assert_array_equal(both[:singles], mlp(0, *alone))
    np.testing.assert_array_equal(both[singles:], mlp(singles, Group(0, rows, True)))
