"""Ways to cut a product into blocks: a layer's four products in a graph, against the read rate.

python -m tests.cuda.bench_products
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from kvbench.device.cuda import arguments
from kvbench.device.cuda.device import CudaDevice
from kvbench.device.cuda.driver import Launch, function, multiprocessors
from kvbench.device.cuda.rates import measure, seconds
from kvbench.device.cuda.weights import DeviceWeights, Matrix

LAYERS = 6
D, QKV, F = 4096, 6144, 14336

# warps, rows of W per warp, loads in flight, blocks that fit, blocks launched, programmatic
VARIANTS = (
    (8, 2, 8, 3, 3, 0), (8, 2, 8, 3, 6, 1), (8, 2, 8, 3, 10_000, 0), (8, 2, 16, 2, 2, 0),
    (8, 2, 16, 2, 2, 1), (16, 2, 8, 1, 1, 0), (16, 2, 8, 1, 1, 1), (16, 1, 16, 1, 1, 1),
    (16, 2, 16, 1, 1, 1), (16, 1, 8, 2, 2, 1), (8, 1, 8, 4, 4, 0),
)  # fmt: skip


def defines(v: tuple[int, ...]) -> dict[str, object]:
    return {"WT": "F16", "ROWS": 1, "R1_WARPS": v[0], "R1_NR": v[1], "R1_LOADS": v[2],
            "R1_MINB": v[3]}  # fmt: skip


def compile_one(v: tuple[int, ...]) -> None:
    function("matvec", "matvec_plain", **defines(v))


def launch(w: Matrix, x: int, y: int, mode: str, gain: int | None, v: tuple[int, ...]) -> Launch:
    groups = -(-w.n // (v[0] * (max(v[1], 2) if mode == "gated" else v[1])))
    return Launch(
        function("matvec", f"matvec_{mode}", **defines(v)),
        (min(groups, multiprocessors() * v[4]),),
        (v[0] * 32,),
        arguments.Mat(
            w.data.raw.data.ptr, None, x, gain, y, None, None, w.k, w.n, w.k, w.n, 1, 1e-5
        ),
        shared=-(-w.k // 256) * 1024,
        overlap=bool(v[5]),
    )


class _Stream:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


def main() -> None:
    unique = list({tuple(sorted(defines(v).items())): v for v in VARIANTS}.values())
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(compile_one, unique))
    with CudaDevice() as device:
        read = measure(device).read
        weights = DeviceWeights(device, "f16")
        shapes = {"qkv": (QKV, D), "wo": (D, D), "gu": (2 * F, D), "down": (D, F)}
        for i in range(LAYERS):
            for name, shape in shapes.items():
                weights.draw(f"{name}{i}", shape, bytes(range(16)), 0.02)
        weights.draw("gain", (D,), bytes(range(16)), 1.0)
        weights.finish()
        x, y = device.alloc("x", F * 4), device.alloc("y", 2 * F * 4)
        gain: Any = weights["gain"]
        each = sum(n * k for n, k in shapes.values()) * 2
        print(
            f"read {read / 1e9:.0f} GB/s; a layer {each / 1e6:.0f} MB: {each / read * 1e6:.1f} us"
        )
        results = []
        for v in VARIANTS:
            launches = []
            for i in range(LAYERS):
                for name, mode in (("qkv", "plain"), ("wo", "residual"), ("gu", "gated"),
                                   ("down", "residual")):  # fmt: skip
                    w: Any = weights[f"{name}{i}"]
                    g = gain.raw.data.ptr if name in ("qkv", "gu") else None
                    launches.append(launch(w, x.raw.data.ptr, y.raw.data.ptr, mode, g, v))
            stream = device._cupy.cuda.Stream(non_blocking=True)
            stream.begin_capture(device._runtime.streamCaptureModeRelaxed)
            for one in launches * 3:
                one(stream.ptr)
            graph = stream.end_capture()
            took = seconds(device, lambda s, g=graph: g.launch(_Stream(s)), 5) / (3 * LAYERS)
            parts = []
            for at in range(4):
                stream.begin_capture(device._runtime.streamCaptureModeRelaxed)
                for one in launches[at::4] * 3:
                    one(stream.ptr)
                part = stream.end_capture()
                parts.append(
                    seconds(device, lambda s, g=part: g.launch(_Stream(s)), 5) / (3 * LAYERS) * 1e6
                )
            results.append((took * 1e6, v, parts))
        for took, v, parts in sorted(results):
            shown = " ".join(f"{p:5.1f}" for p in parts)
            print(f"{took:6.1f} us  {each / read * 1e6 / took:.3f}  {v}  {shown}")


if __name__ == "__main__":
    main()
