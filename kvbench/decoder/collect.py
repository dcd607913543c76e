"""What the sink of a decode loop keeps: tokens, hashes over every logit, audit sums, times."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvbench.decoder.readback import StepOutput
from kvbench.device.kvtypes import F32
from kvbench.device.ranges import Measured

Top2 = tuple[int, float, int, float]
"""Best id, its logit, second id, its logit."""


@dataclass(slots=True)
class Collector:
    """Hashes and keeps what each sequence yields, and when."""

    sequences: int
    detail: bool
    """Keep the top-2 of every position."""
    warmup: int
    tokens: list[list[int]] = field(init=False)
    top2: list[list[Top2]] = field(init=False)
    times: list[float] = field(default_factory=list)
    """When each step was read; under speculation, when the warm-up and the rest were over."""
    measured: Measured = field(default_factory=Measured)
    _logits: list[Any] = field(init=False)
    _audit: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = [[] for _ in range(self.sequences)]
        self.top2 = [[] for _ in range(self.sequences)]
        self._logits = [_hash() for _ in range(self.sequences)]
        self._audit = [_hash() for _ in range(self.sequences)]

    def __call__(self, step: StepOutput) -> None:
        """Take one step of every sequence."""
        self.passed()
        for s in range(self.sequences):
            self.add(s, int(step.tokens[s]), step.logits[s], int(step.sums[s]))

    def passed(self, steps: int = 1) -> None:
        """``steps`` steps are over now; the measured part begins after the warm-up's."""
        self.times += [time.perf_counter()] * steps
        if steps and len(self.times) == self.warmup:
            self.measured.start()

    def add(self, sequence: int, token: int, logits: F32, audit: int) -> None:
        """Take one token with its logits [vocabulary] and its row's audit sum."""
        self.tokens[sequence].append(token)
        self._logits[sequence].update(np.ascontiguousarray(logits, "<f4"))
        self._audit[sequence].update(audit.to_bytes(8, "little"))
        if self.detail:
            self.top2[sequence].append(top2(logits))

    def sequence_hashes(self) -> list[str]:
        """Hash of each sequence's logits, to compare with the same prompt run alone."""
        return [h.hexdigest() for h in self._logits]

    def hashes(self, *, audit: bool) -> dict[str, str]:
        """Hex digests over all sequences: token ids, logits, and audit sums if kept."""
        ids = b"".join(np.asarray(row, "<i4").tobytes() for row in self.tokens)
        found = {"tokens": _hash(ids).hexdigest(), "logits": combined(self.sequence_hashes())}
        if audit:
            found["audit"] = combined([h.hexdigest() for h in self._audit])
        return found


def top2(logits: F32) -> Top2:
    """The two best candidates of one position."""
    second, first = np.argpartition(logits, -2)[-2:]
    if logits[second] > logits[first]:
        first, second = second, first
    return (int(first), float(logits[first]), int(second), float(logits[second]))


def combined(digests: Sequence[str]) -> str:
    """One hex digest of several."""
    return str(_hash("".join(digests).encode()).hexdigest())


def _hash(data: bytes = b"") -> Any:
    return hashlib.blake2b(data, digest_size=16)
