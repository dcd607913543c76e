"""Decode against the ceiling: one token's time over max(copies alone, compute alone).

    python -m tests.cuda.bench_decode MODEL KV_TYPE CONTEXT[,CONTEXT...] [WEIGHT_TYPE] > out.jsonl

The history is seeded, not a prompt's prefill: rows drawn once and repeated (labelled so in the
output). Arms run in one process over the same weights' recipe; each prints a line of JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec
import numpy as np

from kvbench.decoder.engine import Engine
from kvbench.decoder.model import open_model
from kvbench.decoder.readback import StepOutput
from kvbench.decoder.seeded import SeededHistory, fill
from kvbench.decoder.settings import DecoderSettings
from kvbench.decoder.stage import AttentionLayer
from kvbench.device.cuda.device import CudaDevice
from kvbench.device.cuda.rates import measure
from kvbench.device.memory import Span
from kvbench.transport.window import Geometry

WARMUP, STEPS = 10, 32


def copies_alone(engine: Engine, geometry: Geometry) -> tuple[float, int]:
    """Median seconds of one token's windows over the link with nothing else, and their bytes."""
    (stage,) = engine.stages
    device = stage.device
    queue = device.queue("alone")
    layers = [i for i in stage.layers if isinstance(i, AttentionLayer)]
    pitch = engine.cache.pitch
    part = geometry.rows * pitch
    slots = [device.alloc(f"alone{i}", 2 * part) for i in range(3)]
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for i, layer in enumerate(layers):
            for p in (0, 1):
                source = Span(layer.storage.buffer, layer.storage.row(p, 0, 0), part)
                device.copy(queue, Span(slots[i % 3], p * part, part), source, site="alone")
        device.synchronize(queue, "alone")
        times.append(time.perf_counter() - start)
    for slot in slots:
        device.free(slot)
    return median(times[1:]), 2 * part * len(layers)


def decode(engine: Engine, blocks: int) -> tuple[list[float], str, str]:
    """Seconds per token of each block, and the hashes of tokens and logits."""
    tokens, logits = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
    stamps: list[float] = []
    last = [1]

    def sink(step: StepOutput) -> None:
        stamps.append(time.perf_counter())
        tokens.update(step.tokens.tobytes())
        logits.update(np.ascontiguousarray(step.logits).data)
        last[0] = int(step.tokens[0])

    engine.generate({0: 1}, WARMUP + blocks * STEPS, sink)
    marks = stamps[WARMUP - 1 :: STEPS]
    return (
        [(b - a) / STEPS for a, b in pairwise(marks)],
        tokens.hexdigest(),
        logits.hexdigest(),
    )


def arm(model: Any, name: str, rows: int, settings: DecoderSettings) -> dict[str, Any]:
    began = time.perf_counter()
    blocks = 4 if rows < 50_000 else 2 if rows < 100_000 else 1
    with Engine(model, settings, 1, rows + WARMUP + blocks * STEPS + 64) as engine:
        fill(engine, SeededHistory(rows))
        engine.drain("start")
        alone, moved = 0.0, 0
        if not settings.resident:
            row = engine.cache.append([(0, 1)])
            alone, moved = copies_alone(engine, engine.cache.geometry(row))
            engine.cache.truncate(0, rows)
        free = engine.devices[0].free_bytes()
        took, tokens, logits = decode(engine, blocks)
        stage = engine.stages[0]
        kernels: Any = stage.kernels
        return {
            "arm": name,
            "rows": rows,
            "kv": settings.kv_type,
            "weights": settings.weight_type,
            "history": "seeded",
            "token_ms": [round(t * 1e3, 4) for t in took],
            "copies_alone_ms": round(alone * 1e3, 4),
            "window_bytes": moved,
            "weight_bytes": sum(b.nbytes for b in kernels.held.buffers() if "embed" not in b.name),
            "tokens": tokens,
            "logits": logits,
            "telemetry": stage.pipeline.telemetry.as_dict(),
            "device_bytes": dict(engine.devices[0].used_bytes),
            "graph_bytes": free - engine.devices[0].free_bytes(),
            "calls": dict(engine.devices[0].calls),
            "seconds": round(time.perf_counter() - began, 1),
        }


ARMS: dict[str, dict[str, Any]] = {
    "resident": {"resident": True},
    "depth1": {"depth": 1},
    "depth1 wait": {"depth": 1, "boundary": "wait"},
    "depth1 host tail": {"depth": 1, "tail": "host"},
    "depth2": {"depth": 2},
    "depth4": {"depth": 4},
    "ordered": {"depth": 0},
    "direct": {"direct": True},
    "depth1 eager": {"depth": 1, "graphs": False},
}


def main() -> None:
    name, kv, contexts = sys.argv[1:4]
    weights = sys.argv[4] if len(sys.argv) > 4 else "f16"
    wanted = sys.argv[5].split(",") if len(sys.argv) > 5 else list(ARMS)
    with CudaDevice() as device:
        print(json.dumps({"rates": measure(device, device_bytes=2 << 30).as_dict()}), flush=True)
    model = open_model(name)
    base = DecoderSettings(
        device="cuda", kv_type=kv, weight_type=weights, graphs=True, row_multiple=512,  # type: ignore[arg-type]
        budget_mib=0,
    )  # fmt: skip
    for rows in map(int, contexts.split(",")):
        compute = 0.0
        for label in wanted:
            found = arm(model, label, rows - 256, msgspec.structs.replace(base, **ARMS[label]))
            token = median(found["token_ms"])
            compute = token if label == "resident" else compute
            ceiling = max(compute, found["copies_alone_ms"])
            found["share_of_ceiling"] = round(ceiling / token, 4)
            print(json.dumps({"model": name, **found}), flush=True)


if __name__ == "__main__":
    main()
