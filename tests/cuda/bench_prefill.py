"""A prompt's prefill against its two limits, and one layer's products kernel by kernel.

    python -m tests.cuda.bench_prefill [MODEL WEIGHT_TYPE KV_TYPE TOKENS]

The memory limit: the weights are read once a tile of 64 rows. The tensor limit: two products in
half precision for every weight and row, at the peak rate of an H200 (instructions that are not
warp-group wide reach about 0.6 of it). ``by 16`` is the same prompt through the decode products.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from kvbench.decoder.engine import Engine
from kvbench.decoder.model import open_model
from kvbench.decoder.settings import DecoderSettings
from kvbench.device.cuda.device import CudaDevice
from kvbench.device.cuda.driver import Launch
from kvbench.device.cuda.kernel_set import CudaKernels
from kvbench.device.cuda.products import Mode, Product, address
from kvbench.device.cuda.rates import measure, seconds
from kvbench.device.cuda.tiles import TileProducts, slices
from kvbench.device.cuda.weights import DeviceWeights, Matrix
from kvbench.device.kernels import TILE
from kvbench.device.memory import Buffer

TENSOR_FLOPS = 989e12
ROUNDS = 3
COPIES = 6
"""Of each matrix in the second part: more bytes than the L2 cache holds."""

LAYER: tuple[tuple[str, int, int, Mode, bool], ...] = (
    ("wqkv", 6144, 4096, "plain", True), ("wo", 4096, 4096, "residual", False),
    ("w_gate_up", 28672, 4096, "gated", True), ("w_down", 4096, 14336, "residual", False),
    ("w_rec", 8192, 4096, "recurrent", True),
)  # fmt: skip


def tokens_per_second(engine: Engine, device: CudaDevice, count: int) -> float:
    """The best of ``ROUNDS`` prompts of ``count`` tokens."""
    tokens = [(7 * i) % 1000 + 1 for i in range(count)]
    best = 0.0
    for _ in range(1 + ROUNDS):  # the first compiles and loads kernels
        engine.reset(0)
        device.synchronize_all()
        began = time.perf_counter()
        engine.prefill(0, tokens)
        device.synchronize_all()
        best = max(best, count / (time.perf_counter() - began))
    return best


def prompt(model: str, weight_type: Any, kv: Any, count: int) -> None:
    settings = DecoderSettings(device="cuda", resident=True, weight_type=weight_type, kv_type=kv)
    with Engine(open_model(f"synthetic:{model}"), settings, 1, count + TILE) as engine:
        kernels, device = engine.stages[0].kernels, engine.devices[0]
        assert isinstance(kernels, CudaKernels) and isinstance(device, CudaDevice)
        read = measure(device, device_bytes=1 << 30).read
        matrices = [
            m for name, m in kernels.held.items()
            if isinstance(m, Matrix) and name not in ("embed", "head")
        ]  # fmt: skip
        nbytes, weights = sum(m.nbytes for m in matrices), sum(m.n * m.k for m in matrices)
        memory, tensor = read * TILE / nbytes, TENSOR_FLOPS / (4 * weights)
        rate = tokens_per_second(engine, device, count)
        print(
            f"{model} {weight_type}, {kv} KV, {count} tokens: {rate:.0f} tokens/s; memory limit"
            f" {memory:.0f} ({rate / memory:.3f} of it), tensor limit {tensor:.0f}"
            f" ({rate / tensor:.3f})",
            flush=True,
        )
        tiles, kernels.tiles = kernels.tiles, None
        kernels._launches.clear()
        print(f"  by 16: {tokens_per_second(engine, device, count):.0f} tokens/s", flush=True)
        kernels.tiles = tiles


class Stream:
    """What a captured graph needs of a stream."""

    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def microseconds(device: CudaDevice, launches: Sequence[Launch]) -> float:
    """Each, replayed as a graph."""
    stream = device._cupy.cuda.Stream(non_blocking=True)
    stream.begin_capture(device._runtime.streamCaptureModeRelaxed)
    for launch in launches:
        launch(stream.ptr)
    graph = stream.end_capture()
    return seconds(device, lambda s: graph.launch(Stream(s)), 9) / len(launches) * 1e6


def layer(weight_type: Any) -> None:
    """The products of the 8B shape, and a recurrent one: three kernels each."""
    with CudaDevice() as device:
        read = measure(device, device_bytes=1 << 30).read
        weights = DeviceWeights(device, weight_type)
        for name, n, k, _, _ in LAYER:
            for i in range(COPIES):
                weights.draw(f"{name}{i}", (n, k), bytes(range(16)), 0.02)
        weights.draw("gain", (4096,), bytes(range(16)), 1.0)
        weights.finish()
        gain = weights["gain"]
        assert isinstance(gain, Buffer)
        x, y = (device.alloc(name, TILE * 28672 * 4) for name in "xy")
        memory, state = device.alloc("memory", 8192 * 4), device.alloc("state", TILE * 8 * 4)
        print(f"{weight_type}, us a tile: split, multiply, finish, all; at the read rate; slices")
        for name, n, k, mode, gained in LAYER:
            launches: list[Launch] = []
            for i in range(COPIES):
                matrix = weights[f"{name}{i}"]
                assert isinstance(matrix, Matrix)
                if i == 0:
                    tiles = TileProducts(device, [matrix])
                product = Product(
                    matrix, address(x), k, address(y), n, mode,
                    gain=address(gain) if gained else None, memory=address(memory),
                    state=address(state), eps=1e-5,
                )  # fmt: skip
                launches += tiles.launches(product, TILE)
            parts = [microseconds(device, launches[at::3]) for at in range(3)]
            parts.append(3 * microseconds(device, launches))
            shown = " ".join(f"{part:6.1f}" for part in parts)
            print(f"  {name:9s} {shown}; {matrix.nbytes / read * 1e6:6.1f}; {slices(n, k)}")


def main() -> None:
    if len(sys.argv) > 1:
        model, weight_type, kv, count = sys.argv[1:5]
        prompt(model, weight_type, kv, int(count))
        return
    prompt("dense-8b", "f16", "f16", 2048)
    for weight_type in ("f16", "q8_0", "q4_0"):
        layer(weight_type)


if __name__ == "__main__":
    main()
