"""Ways to cut a product into blocks: a layer's four products in a graph, against the read rate.

python -m tests.cuda.bench_products [f16 | q8_0 | q4_0]
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from kvbench.device.cuda.device import CudaDevice
from kvbench.device.cuda.driver import Launch, function
from kvbench.device.cuda.products import Mode, Product, product_launch
from kvbench.device.cuda.rates import measure, seconds
from kvbench.device.cuda.source import BLOCKED, BLOCKED_CUTS, CUTS, MACRO, SHARED, Cut
from kvbench.device.cuda.weights import DeviceWeights

LAYERS = 6
D, QKV, F = 4096, 6144, 14336
SHAPES = {"qkv": (QKV, D), "wo": (D, D), "gu": (2 * F, D), "down": (D, F)}
MODES: dict[str, Mode] = {"qkv": "plain", "wo": "residual", "gu": "gated", "down": "residual"}

# rows of x; warps of a block, rows of W per warp, pieces under way, loads of a piece, values of x,
# pieces before x
VARIANTS = [(1, 8, 2, 2, 8, 20480, 1), (1, 8, 2, 2, 8, 20480, 2), (1, 8, 2, 3, 4, 28672, 1)]
VARIANTS += [(1, 8, 2, 3, 4, 28672, 3), (1, 8, 2, 4, 4, 20480, 2), (1, 8, 4, 4, 2, 20480, 2)]
VARIANTS += [(1, 16, 2, 2, 4, 20480, 1), (2, 8, 2, 3, 4, 14336, 3), (2, 8, 2, 3, 4, 14336, 2)]
VARIANTS += [(4, 16, 2, 2, 2, 8192, 2), (4, 8, 4, 2, 4, 4096, 2), (4, 16, 2, 2, 2, 4096, 2)]
VARIANTS += [(8, 8, 4, 2, 2, 4096, 2), (8, 8, 4, 2, 2, 2048, 2), (16, 8, 4, 2, 2, 2048, 2)]
VARIANTS += [(16, 8, 4, 2, 2, 1024, 2)]
BLOCKED_VARIANTS = [(1, 16, 2, 2, 4, 16384, 2), (1, 16, 2, 2, 4, 16384, 1)]
BLOCKED_VARIANTS += [
    (1, 16, 2, 2, 2, 28672, 2),
    (1, 8, 2, 2, 4, 16384, 1),
    (1, 8, 2, 2, 4, 16384, 2),
]
BLOCKED_VARIANTS += [
    (1, 8, 4, 2, 4, 12288, 1),
    (2, 16, 2, 2, 2, 12288, 2),
    (2, 8, 2, 2, 4, 12288, 2),
]
BLOCKED_VARIANTS += [(2, 8, 4, 2, 2, 12288, 2), (4, 16, 2, 2, 2, 8192, 2), (4, 8, 4, 2, 2, 6144, 2)]
BLOCKED_VARIANTS += [(8, 8, 4, 2, 2, 4096, 2), (8, 8, 4, 1, 2, 4096, 1), (8, 8, 2, 2, 2, 4096, 2)]
BLOCKED_VARIANTS += [(16, 8, 4, 1, 2, 2048, 1), (16, 8, 2, 2, 2, 2048, 2)]
VALUE_BYTES = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""With the scales of blocks."""


def compile_one(kind: str, v: tuple[int, ...]) -> None:
    function("matvec", "matvec", WT=MACRO[kind], ROWS=v[0], **Cut(*v[1:]).defines())


class _Stream:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def layers(weights: DeviceWeights, pointers: dict[str, int], v: tuple[int, ...]) -> list[Launch]:
    """Four products of each layer, cut as ``v`` says."""
    (BLOCKED_CUTS if MACRO[weights.kind] in BLOCKED else CUTS)[v[0]] = (Cut(*v[1:]),)
    launches = []
    for i in range(LAYERS):
        for name, mode in MODES.items():
            w: Any = weights[f"{name}{i}"]
            gain = pointers["gain"] if name in ("qkv", "gu") else None
            product = Product(w, pointers["x"], w.k, pointers["y"], w.n, mode, gain, eps=1e-5)
            launches.append(product_launch(product, v[0]))
    return launches


def replay(device: CudaDevice, launches: list[Launch]) -> float:
    """Microseconds a layer of a captured graph."""
    stream = device._cupy.cuda.Stream(non_blocking=True)
    stream.begin_capture(device._runtime.streamCaptureModeRelaxed)
    for one in launches * 3:
        one(stream.ptr)
    graph = stream.end_capture()
    return seconds(device, lambda s: graph.launch(_Stream(s)), 5) / (3 * LAYERS) * 1e6


def main() -> None:
    kind: Any = sys.argv[1] if len(sys.argv) > 1 else "f16"
    variants = BLOCKED_VARIANTS if MACRO[kind] in BLOCKED else VARIANTS
    for v in variants:
        assert Cut(*v[1:]).fitted(v[0], MACRO[kind], SHARED) == Cut(*v[1:]), v
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(partial(compile_one, kind), variants))
    with CudaDevice() as device:
        read = measure(device).read
        weights = DeviceWeights(device, kind)
        for i in range(LAYERS):
            for name, shape in SHAPES.items():
                weights.draw(f"{name}{i}", shape, bytes(range(16)), 0.02)
        weights.draw("gain", (D,), bytes(range(16)), 1.0)
        weights.finish()
        held = {name: device.alloc(name, 16 * 2 * F * 4) for name in ("x", "y")}
        pointers = {name: buffer.raw.data.ptr for name, buffer in held.items()}
        gain: Any = weights["gain"]
        pointers["gain"] = gain.raw.data.ptr
        each = sum(n * k for n, k in SHAPES.values()) * VALUE_BYTES[kind]
        least = each / read * 1e6
        print(f"{kind}: read {read / 1e9:.0f} GB/s; a layer {each / 1e6:.0f} MB: {least:.1f} us")
        print(
            "us a layer, share of it, (rows, warps, rows of W, pieces, loads, x, early), products"
        )
        results = []
        for v in variants:
            launches = layers(weights, pointers, v)
            parts = [replay(device, launches[at :: len(SHAPES)]) for at in range(len(SHAPES))]
            results.append((v[0], replay(device, launches), v, parts))
        for _, took, v, parts in sorted(results):
            shown = " ".join(f"{p:5.1f}" for p in parts)
            print(f"{took:6.1f} us  {least / took:.3f}  {v}  {shown}")


if __name__ == "__main__":
    main()
