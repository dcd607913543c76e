"""First numbers of a GPU: rates, products, attention and a resident token, eager and captured.

python -m tests.cuda.bench_spike [preset] [f16|q8_0|q4_0]
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from kvbench.decoder import synthetic
from kvbench.decoder.device_weights import draw_on_device
from kvbench.device.cuda import driver, kernel_set
from kvbench.device.cuda.device import CudaDevice
from kvbench.device.cuda.kernel_set import CudaKernels, product_launch
from kvbench.device.cuda.rates import measure, seconds
from kvbench.device.cuda.weights import DeviceWeights, Matrix
from kvbench.device.kernels import Batch, Group, Shapes, View, Where
from kvbench.device.kvtypes import kv_type


def products(device: CudaDevice, read: float) -> None:
    """Single products, rotating over copies that exceed any cache, back to back in a graph."""
    print("product            kind rows  overlap  GB/s  of read rate")
    for n, k in ((28672, 4096),):
        for kind, rows_list in (("f16", (1, 4)), ("q8_0", (1,))):
            weights = DeviceWeights(device, kind)  # type: ignore[arg-type]
            one = n * k * {"f16": 2.0, "q8_0": 1.0625, "q4_0": 0.5625}[kind]
            copies = max(4, int(800e6 / one))
            for i in range(copies):
                weights.draw(f"w{i}", (n, k), bytes(range(16)), 0.02)
            weights.finish()
            x, y = device.alloc("x", 16 * k * 4), device.alloc("y", 16 * n * 4)
            for rows in rows_list:
                for overlap in (False, True):
                    driver._programmatic.cache_clear()
                    original = driver._programmatic
                    driver._programmatic = lambda on=overlap: on  # type: ignore[assignment]
                    launches = []
                    for i in range(copies):
                        w = weights[f"w{i}"]
                        assert isinstance(w, Matrix)
                        launches.append(
                            product_launch(w, rows, x.raw.data.ptr, k, y.raw.data.ptr, n)
                        )
                    driver._programmatic = original
                    stream = device._cupy.cuda.Stream(non_blocking=True)
                    stream.begin_capture(device._runtime.streamCaptureModeRelaxed)
                    for launch in launches:
                        launch(stream.ptr)
                    graph = stream.end_capture()
                    took = seconds(device, lambda s, g=graph: g.launch(_Stream(s)))
                    rate = weights.nbytes / took
                    print(
                        f"{n:6d} x {k:6d}   {kind:>5s} {rows:4d} {overlap!s:>8s}"
                        f" {rate / 1e9:6.0f}  {rate / read:.3f}"
                    )
            weights.close()
            device.free(x)
            device.free(y)


class _Stream:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def token(device: CudaDevice, preset: str, kind: Any, kv: str, rows: int, read: float) -> None:
    """Device-resident decode of a preset: one token, eager and captured, against the roofline."""
    config, seed = synthetic.parse(f"synthetic:{preset}")
    start = time.perf_counter()
    weights = DeviceWeights(device, kind)
    for name in config.tensor_shapes():
        draw_on_device(weights, config, seed, name)
    weights.finish()
    took = time.perf_counter() - start
    print(f"{preset} {kind}: {weights.nbytes / 1e9:.2f} GB drawn in {took:.1f} s")
    shapes = Shapes(
        config.d_model, config.n_heads, config.n_kv_heads, config.head_dim, config.d_ff,
        config.vocab_size, config.context, config.rms_eps, config.rope_theta,
        config.rope_interleaved, config.rope_dim,
    )  # fmt: skip
    codec = kv_type(kv, n_kv_heads=config.n_kv_heads, head_dim=config.head_dim)
    kernels = CudaKernels(device, shapes, weights, codec, full_rows=rows)
    layers = config.attention_layers
    window = 2 * rows * codec.pitch
    cache = device.alloc("cache", len(layers) * window)
    memory = device.alloc("memory", config.d_model * 4 * config.n_layers)
    state = np.zeros((80, 8), np.int32)
    state[0, :3] = (1, rows - 128, rows - 128)
    kernels.state.raw.view(np.int32).reshape(80, 8)[:] = device._cupy.asarray(state)
    batch = Batch((Group(0, 1, False),), (0,), where=[Where(0, 0, rows - 128)])
    ops = [kernels.embed(batch)]
    for layer, what in enumerate(config.layer_kinds):
        if what == "attention":
            base = layers.index(layer) * window
            view = View(cache, base, window // 2, window // 2, codec.pitch, False)
            ops.append(kernels.attn_in(layer, batch))
            ops.append(kernels.write_rows(batch, view, site="place"))
            ops.append(kernels.attend(layer, batch, view))
        else:
            ops.append(
                kernels.recur(
                    layer, batch, memory.span(layer * config.d_model * 4, config.d_model * 4)
                )
            )
        ops.append(kernels.mlp(layer, batch))
    ops += [kernels.head(batch), kernels.choose(batch, advance=True)]
    queue = device.queue("token")
    for op in ops:
        device.submit(queue, op)
    device.synchronize(queue, "warm")
    needed = (
        sum(op.nbytes for op in ops if op.site != "place")
        + len(layers) * 2 * (rows - 128) * codec.pitch
    )
    for per_sm, overlap, ahead in (
        (1, False, 0), (1, False, 8), (1, False, 24), (4, False, 0), (8, False, 0), (8, True, 0),
        (16, False, 0), (16, True, 0), (16, False, 24), (16, True, 24),
    ):  # fmt: skip
        kernels._launches.clear()
        kernel_set.BLOCKS_PER_SM = per_sm
        kernel_set.NEXT_BYTES = ahead << 20
        original = driver._programmatic
        driver._programmatic = lambda on=overlap: on  # type: ignore[assignment]
        kernels.state.raw.view(np.int32).reshape(80, 8)[:] = device._cupy.asarray(state)
        with device.capture(queue) as graph:
            for op in ops:
                device.submit(queue, op)
        driver._programmatic = original
        took = seconds(device, lambda s: graph.native.launch(_Stream(s)), 11)
        print(
            f"  captured per_sm={per_sm} overlap={overlap} ahead={ahead}: {took * 1e3:.3f} ms,"
            f" roofline {needed / read * 1e3:.3f} ms, {needed / read / took:.3f}"
        )
    kernels.state.raw.view(np.int32).reshape(80, 8)[:] = device._cupy.asarray(state)
    kernel_set.BLOCKS_PER_SM = 1
    kernels._launches.clear()
    eager = []
    for _ in range(6):
        start = time.perf_counter()
        for op in ops:
            device.submit(queue, op)
        issued = time.perf_counter() - start
        device.synchronize(queue, "t")
        eager.append((time.perf_counter() - start, issued))
    whole, issue = (min(e[i] for e in eager) * 1e3 for i in (0, 1))
    print(f"  eager: {whole:.3f} ms, host issue {issue:.3f} ms")
    for site in ("attn_in", "attend", "mlp", "recur", "place", "head", "choose"):
        mine = [op for op in ops if op.site == site]
        if not mine:
            continue
        stream = device._cupy.cuda.Stream(non_blocking=True)
        stream.begin_capture(device._runtime.streamCaptureModeRelaxed)
        for op in mine:
            op.run(stream)
        graph_ = stream.end_capture()
        took = seconds(device, lambda s, g=graph_: g.launch(_Stream(s)), 5)
        print(
            f"  {site}: {took * 1e3:.3f} ms in all, {took / len(mine) * 1e6:.1f} us each, "
            f"{sum(op.nbytes for op in mine) / took / 1e9:.0f} GB/s of weights"
        )
    device.drop_queue(queue)
    for buffer in [*kernels.buffers(), cache, memory]:
        device.free(buffer)


def main() -> None:
    with CudaDevice() as device:
        rates = measure(device)
        print({k: round(v, 1) for k, v in rates.as_dict().items()})
        products(device, rates.read)
        token(device, "dense-8b", "f16", "f16", 1024, rates.read)
        token(device, "hybrid-27b", "f16", "q8_0", 16384, rates.read)


if __name__ == "__main__":
    main()
    sys.exit(0)
