"""Stock, elided and quiet waits on a GPU: waits a token, API calls, milliseconds a token.

    python -m tests.cuda.bench_waits [MODEL ROUNDS]

Arms take turns in one process (stock, elided, quiet, quiet, elided, stock ...) over the same
weights; a figure is the median over rounds. No verdict: ``kvbench ab sync-elision`` gives one.
"""

from __future__ import annotations

import sys
from statistics import median
from typing import Any

from kvbench.decoder.model import open_model
from kvbench.decoder.session import DecodeTask, run_task
from kvbench.decoder.settings import parse

MODES = ("stock", "elided", "quiet")
WARMUP, GENERATE = 8, 128


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "synthetic:dense-8b,layers=8"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    model = open_model(name)
    prompt = [(7 * i) % 50 + 1 for i in range(64)]
    task = DecodeTask([prompt], GENERATE, WARMUP, snapshots=False)
    base: dict[str, Any] = {"device": "cuda", "weight_type": "f16", "depth": 1}
    for graphs in (False, True):
        took: dict[str, list[float]] = {mode: [] for mode in MODES}
        last = {}
        for number in range(rounds):
            for mode in MODES if number % 2 == 0 else MODES[::-1]:
                last[mode] = run_task(model, parse({**base, "graphs": graphs, "waits": mode}), task)
                took[mode].append(last[mode].result.decode_s / last[mode].result.tokens * 1e3)
        hashes = {mode: run.result.hashes["logits"] for mode, run in last.items()}
        print(f"{name}, {'captured' if graphs else 'eager'}, {rounds} rounds of {GENERATE} tokens")
        for mode in MODES:
            result = last[mode].result
            made = sum(count[0] for count in result.waits.values()) / (WARMUP + GENERATE)
            same = "same output" if hashes[mode] == hashes["stock"] else "OTHER OUTPUT"
            times = " ".join(f"{ms:.3f}" for ms in took[mode])
            print(f"  {mode:7s} {made:6.2f} waits/token  {median(took[mode]):8.3f} ms/token"
                  f"  ({times})  {same}")  # fmt: skip
        print("  calls of the last stock run:", dict(sorted(last["stock"].result.counters.items())))


if __name__ == "__main__":
    main()
