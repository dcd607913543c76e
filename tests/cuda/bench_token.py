"""A resident token against the device-memory roofline: captured, eager, and kernel by kernel.

python -m tests.cuda.bench_token [MODEL WEIGHT_TYPE KV_TYPE ROWS]
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from kvbench.decoder.device_weights import device_weights
from kvbench.decoder.devices import shapes_of
from kvbench.decoder.model import open_model
from kvbench.device.cuda.device import CudaDevice
from kvbench.device.cuda.kernel_set import CudaKernels
from kvbench.device.cuda.rates import measure, seconds
from kvbench.device.kernels import MAX_ROWS, Batch, Group, View, Where
from kvbench.device.kvtypes import kv_type
from kvbench.device.memory import Buffer
from kvbench.device.ops import Op

SITES = ("attn_in", "attend", "recur", "mlp", "head", "choose")
SPARE = 128
"""Rows left free: each launch moves on by one."""


class Pointer:
    """What a captured graph needs of a stream."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def operations(
    kernels: CudaKernels, config: Any, cache: Buffer, memory: Buffer, rows: int
) -> list[Op]:
    """One token's operations with all KV on the device."""
    batch = Batch((Group(0, 1, False),), (0,), where=[Where(0, 0, rows - SPARE)])
    window, pitch, width = 2 * rows * kernels.codec.pitch, kernels.codec.pitch, config.d_model * 4
    ops = [kernels.embed(batch)]
    for layer, kind in enumerate(config.layer_kinds):
        if kind == "attention":
            base = config.attention_layers.index(layer) * window
            view = View(cache, base, window // 2, window // 2, pitch, False)
            ops += [
                kernels.attn_in(layer, batch, place=True),
                *kernels.place_and_attend(layer, batch, view),
            ]
        else:
            ops.append(kernels.recur(layer, batch, memory.span(layer * width, width)))
        ops.append(kernels.mlp(layer, batch))
    return [*ops, kernels.head(batch), kernels.choose(batch, advance=True)]


def captured_seconds(device: CudaDevice, ops: list[Op]) -> float:
    """Median seconds of a replay."""
    queue = device.queue("capture")
    with device.capture(queue) as graph:
        for op in ops:
            device.submit(queue, op)
    took = seconds(device, lambda s: graph.native.launch(Pointer(s)), 9)
    device.drop_graph(graph)
    device.drop_queue(queue)
    return took


def token(model: str, weight_type: Any, kv: str, rows: int) -> None:
    opened = open_model(f"synthetic:{model}")
    config = opened.config
    with CudaDevice() as device:
        read = measure(device).read
        held = device_weights(config, opened.weights, device, weight_type, range(config.n_layers))
        codec = kv_type(kv, n_kv_heads=config.n_kv_heads, head_dim=config.head_dim)
        kernels = CudaKernels(device, shapes_of(config), held, codec, full_rows=rows)
        window = 2 * rows * codec.pitch
        cache = device.alloc("cache", max(1, len(config.attention_layers)) * window)
        memory = device.alloc("memory", config.n_layers * config.d_model * 4)
        state = np.zeros((MAX_ROWS, 8), np.int32)
        state[0, :3] = (1, rows - SPARE, rows - SPARE)

        def reset() -> None:
            kernels.state.raw.view(np.int32).set(state.reshape(-1))

        ops = operations(kernels, config, cache, memory, rows)
        reads = sum(op.nbytes for op in ops)
        reads += len(config.attention_layers) * 2 * (rows - SPARE) * codec.pitch
        reset()
        took = captured_seconds(device, ops)
        print(
            f"{model} {weight_type}, {kv} KV, {rows - SPARE} rows: {took * 1e3:.3f} ms captured;"
            f" {reads / 1e9:.2f} GB at {read / 1e9:.0f} GB/s are {reads / read * 1e3:.3f} ms,"
            f" {reads / read / took:.3f} of it"
        )
        reset()
        queue, times = device.queue("eager"), []
        for _ in range(6):
            start = time.perf_counter()
            for op in ops:
                device.submit(queue, op)
            issued = time.perf_counter() - start
            device.synchronize(queue, "token")
            times.append((time.perf_counter() - start, issued))
        print("  eager {:.3f} ms, of which the host issues for {:.3f} ms".format(
            *(min(t[i] for t in times) * 1e3 for i in (0, 1))))  # fmt: skip
        reset()
        for site in SITES:
            mine = [op for op in ops if op.site == site]
            if mine:
                took = captured_seconds(device, mine)
                rate = sum(op.nbytes for op in mine) / took / 1e9
                print(
                    f"  {site:8s} {took * 1e3:7.3f} ms, {took / len(mine) * 1e6:6.1f} us each,"
                    f" {rate:5.0f} GB/s of weights"
                )


def main() -> None:
    if len(sys.argv) > 1:
        model, weight_type, kv, rows = sys.argv[1:5]
        token(model, weight_type, kv, int(rows))
        return
    token("dense-8b", "f16", "f16", 1024)
    token("hybrid-27b", "f16", "q8_0", 16384)


if __name__ == "__main__":
    main()
