"""No growth: a long generation, with what the device's memory holds every thousand tokens.

    python -m tests.cuda.bench_growth [MODEL TOKENS] > growth.txt

The window grows with the history, and the ring with it; both are counted. What must not grow is
the rest: memory that is neither free nor counted (graphs, the driver, CuPy's pools).
"""

from __future__ import annotations

import sys
import time

from kvbench.decoder.engine import Engine
from kvbench.decoder.model import open_model
from kvbench.decoder.readback import StepOutput
from kvbench.decoder.settings import DecoderSettings

EVERY = 1000
MIB = 1 << 20


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "synthetic:dense-8b,layers=8"
    tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    settings = DecoderSettings(
        device="cuda", kv_type="f16", weight_type="f16", graphs=True, row_multiple=512, depth=1
    )
    done, began = 0, time.perf_counter()
    with Engine(open_model(name), settings, 1, tokens + 64) as engine:
        device = engine.devices[0]

        def sink(_step: StepOutput) -> None:
            nonlocal done, began
            done += 1
            if done % EVERY:
                return
            free, counted = device.free_bytes(), device.used_bytes["device"]
            now = time.perf_counter()
            print(
                f"{done:6d} tokens: {free / MIB:9.1f} MiB free, {counted / MIB:9.1f} counted, sum"
                f" {(free + counted) / MIB:9.1f}, host {device.used_bytes['host'] / MIB:.1f},"
                f" {(now - began) / EVERY * 1e3:.3f} ms a token",
                flush=True,
            )
            began = now

        engine.generate({0: 1}, tokens, sink)
        print(engine.stages[0].pipeline.telemetry.as_dict())


if __name__ == "__main__":
    main()
