"""Small runs that several tests share."""

from __future__ import annotations

from functools import cache
from typing import Any

from kvbench.decoder.model import Model, open_model
from kvbench.decoder.session import DecodeRun, DecodeTask, run_task
from kvbench.decoder.settings import parse

AGREEING = "synthetic:tiny,layers=4,shallow=2,later=250"
"""A target whose first two layers agree with it about three times out of four."""


@cache
def agreeing() -> Model:
    return open_model(AGREEING)


def prompts(sequences: int) -> list[list[int]]:
    """Texts with repetitions (so that prompt lookup finds some), different in every sequence."""
    return [[(7 * i + 3 * s) % 50 + s for i in range(30)] * 2 for s in range(sequences)]


def decode(sequences: int = 1, generate: int = 16, **settings: Any) -> DecodeRun:
    task = DecodeTask(prompts(sequences), generate, warmup=2, snapshots=False)
    return run_task(agreeing(), parse({"record": True, "audit": True, **settings}), task)


@cache
def plain(sequences: int, generate: int = 16) -> DecodeRun:
    """Device-resident decoding without transport, draft or host waits: what all must equal."""
    return decode(sequences, generate, resident=True)
