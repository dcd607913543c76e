"""What one wait costs, from published throughputs, and what that predicts for another row.

The model has one term: a token that is spared n waits is shorter by n times the cost of one. It is
fitted to the speculative row, where the number of calls was counted as well, and can only be tested
on the plain row.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

CAPTURED_TOKENS = 3 * 512
"""Tokens of the capture in which the origin counted calls: three requests of 512."""
LINUX_TOKEN = 18 - 10
"""Waits spared per token that the origin's earlier revision counted on Linux."""


@dataclass(frozen=True, slots=True)
class Published:
    """The origin's rows: tokens/s of both arms, and calls of the capture."""

    speculative: tuple[float, float]
    plain: tuple[float, float]
    calls: tuple[float, float]


def read_published(path: Path) -> Published:
    """The rows of ``sync_elision.csv``."""
    rows: dict[tuple[str, str], tuple[float, float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            rows[row["workload"], row["metric"]] = float(row["stock"]), float(row["elided"])
    return Published(
        rows["speculative", "decode_tps"],
        rows["plain", "decode_tps"],
        rows["capture_3x512", "cudaStreamSynchronize"],
    )


@dataclass(frozen=True, slots=True)
class Fit:
    """The cost of one wait, and what it is made of."""

    saved_ms: float
    """Per token, in the speculative row."""
    calls: float
    """Spared per token, in the capture."""

    @property
    def cost_us(self) -> float:
        """Of one real synchronize."""
        return self.saved_ms / self.calls * 1e3


def fit(published: Published) -> Fit:
    """From the speculative row alone."""
    stock, elided = published.speculative
    calls = (published.calls[0] - published.calls[1]) / CAPTURED_TOKENS
    return Fit(1e3 / stock - 1e3 / elided, calls)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The plain row as the model has it, beside what was published."""

    spared: float
    """Waits spared per plain token."""
    saved_ms: float
    gain: float
    """Of tokens/s, 0.1 for +10%."""
    published_ms: float
    published_gain: float

    @property
    def share(self) -> float:
        """How much of the published saving the model accounts for."""
        return self.saved_ms / self.published_ms


def predict(published: Published, cost_us: float, spared: float) -> Prediction:
    """The plain row if each of its tokens is spared ``spared`` waits of ``cost_us``."""
    stock, elided = (1e3 / rate for rate in published.plain)
    saved = spared * cost_us / 1e3
    return Prediction(
        spared,
        saved,
        saved / (stock - saved),
        stock - elided,
        published.plain[1] / published.plain[0] - 1,
    )


def predictions(published: Published, found: Fit, spared: float) -> dict[str, Prediction]:
    """The plain row by three counts of spared waits; ``spared``: this decoder's."""
    counts = {
        "this decoder's table": spared,
        "as the speculative capture": found.calls,
        "the origin on Linux, 18 to 10": LINUX_TOKEN,
    }
    return {name: predict(published, found.cost_us, n) for name, n in counts.items()}
