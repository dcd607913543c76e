"""M4: from the differences of blocks to an estimate with its standard error.

Everything is in natural logarithms of speed. Functions take arrays whose last axis is the sample
and work on any number of leading axes, so that the simulation runs the code that judges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvbench.analysis.distributions import f_quantile, f_tail, t_quantile, t_tail

Array = npt.NDArray[np.float64]

POOLING_ALPHA = 0.05
"""The F-test's level: a variance that differs from the stored one at this level is not pooled."""


@dataclass(frozen=True)
class Estimate:
    """Mean log ratio arm / baseline; ``mean`` and ``se`` may be arrays over experiments."""

    mean: Any
    se: Any
    df: float
    method: str

    def interval(self, level: float) -> tuple[Any, Any]:
        """The t interval of confidence ``level``."""
        half = t_quantile((1 + level) / 2, self.df) * self.se
        return self.mean - half, self.mean + half

    def p_differs(self) -> float:
        """Two-sided p value of "no difference" (scalar estimates only)."""
        return 2 * t_tail(abs(_ratio(float(self.mean), float(self.se))), self.df)

    def p_equivalent(self, margin: float) -> float:
        """TOST: the larger p of "at or below -margin" and "at or above +margin"."""
        mean, se = float(self.mean), float(self.se)
        return max(
            t_tail(_ratio(margin + mean, se), self.df), t_tail(_ratio(margin - mean, se), self.df)
        )


def _ratio(value: float, se: float) -> float:
    """value / se, where no spread at all makes any difference certain."""
    if se == 0:
        return 0.0 if value == 0 else float("inf") * (1 if value > 0 else -1)
    return value / se


def from_blocks(d: Array) -> Estimate:
    """``d``: (..., n) differences of n >= 2 blocks."""
    n = d.shape[-1]
    return Estimate(d.mean(axis=-1), d.std(axis=-1, ddof=1) / np.sqrt(n), n - 1, "blocks")


def from_pairs(pairs: Array, order: Array) -> Estimate:
    """2n adjacent pairs with an order term, for 2 or 3 blocks.

    ``pairs``: (..., 2n) log arm - log baseline. ``order``: (2n,) how many positions after the
    baseline the arm ran; sums to 0, so that the order term leaves the mean alone.
    """
    mean = pairs.mean(axis=-1)
    slope = (pairs * order).sum(axis=-1) / (order**2).sum()
    residuals = pairs - mean[..., None] - slope[..., None] * order
    size = pairs.shape[-1]
    df = size - 2
    se = np.sqrt((residuals**2).sum(axis=-1) / df / size)
    return Estimate(mean, se, df, "pairs with order term")


@dataclass(frozen=True)
class Floor:
    """A stored A/A calibration: how much d_k scatters when both arms are the same."""

    variance: float
    """Of d_k between blocks, log units squared."""
    df: int

    def relative(self, blocks: int) -> float:
        """The A/A floor of n blocks: 95% of A/A estimates stay below it (a ratio less 1)."""
        half = t_quantile(0.975, self.df) * math.sqrt(self.variance / blocks)
        return math.expm1(half)

    def upper_spread(self, confidence: float) -> float:
        """Upper bound of the true standard deviation of d_k, from chi-square with ``df``."""
        # An F whose second spread is known exactly is chi-square / df.
        return math.sqrt(self.variance / f_quantile(1 - confidence, self.df, 1e6))


def pool(estimate: Estimate, n: int, floor: Floor) -> tuple[Estimate, float]:
    """Pool a block estimate's variance with the stored one; also the F-test's two-sided p.

    If the F-test rejects equal variances, the estimate is returned as it was.
    """
    own = float(estimate.se) ** 2 * n
    if own == 0 or floor.variance == 0:
        return estimate, 0.0
    upper = f_tail(own / floor.variance, n - 1, floor.df)
    p = 2 * min(upper, 1 - upper)
    if p < POOLING_ALPHA:
        return estimate, p
    df = n - 1 + floor.df
    variance = ((n - 1) * own + floor.df * floor.variance) / df
    method = estimate.method + ", pooled A/A variance"
    return Estimate(estimate.mean, np.sqrt(variance / n), df, method), p
