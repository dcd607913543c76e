"""Layers split over two GPUs, each with its ring, against one GPU: same bytes, and how fast.

python -m tests.cuda.bench_split MODEL KV_TYPE CONTEXT
"""

from __future__ import annotations

import json
import sys
from typing import Any

import cupy

from kvbench.decoder.engine import Engine
from kvbench.decoder.model import open_model
from kvbench.decoder.seeded import SeededHistory, fill
from kvbench.decoder.settings import DecoderSettings
from tests.cuda.bench_decode import STEPS, WARMUP, decode

ARMS: dict[str, dict[str, Any]] = {
    "one, depth1": {"depth": 1},
    "two, depth1": {"depth": 1, "devices": 2},
    "two, ordered": {"devices": 2},
    "two, resident": {"devices": 2, "resident": True},
}


def main() -> None:
    name, kv, context = sys.argv[1], sys.argv[2], int(sys.argv[3])
    model = open_model(name)
    gpus = cupy.cuda.runtime.getDeviceCount()
    for label, arm in ARMS.items():
        settings = DecoderSettings(
            device="cuda", kv_type=kv, weight_type="f16", row_multiple=512, budget_mib=0,  # type: ignore[arg-type]
            **arm,
        )  # fmt: skip
        with Engine(model, settings, 1, context + WARMUP + STEPS + 64) as engine:
            fill(engine, SeededHistory(context - 256))
            engine.drain("start")
            took, tokens, logits = decode(engine, 1)
            print(
                json.dumps(
                    {
                        "model": name,
                        "gpus": gpus,
                        "arm": label,
                        "rows": context - 256,
                        "kv": kv,
                        "history": "seeded",
                        "token_ms": [round(t * 1e3, 4) for t in took],
                        "tokens": tokens,
                        "logits": logits,
                        "rings": [s.pipeline.telemetry.as_dict() for s in engine.stages],
                        "device_bytes": [d.used_bytes["device"] for d in engine.devices],
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
