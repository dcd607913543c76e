"""M5, M6: what to look at beside an estimate. None of these changes a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvbench.analysis.distributions import t_tail
from kvbench.analysis.estimate import Array

OUTLIER_MADS = 3.5
_MAD_TO_SD = 1.4826


def slope_over_blocks(values: Array) -> tuple[float | None, float | None]:
    """Least-squares slope of ``values`` (n,) over 0..n-1, and its two-sided p (n >= 3)."""
    n = values.size
    if n < 2:
        return None, None
    x = np.arange(n) - (n - 1) / 2
    slope = float((x * values).sum() / (x**2).sum())
    if n < 3:
        return slope, None
    residuals = values - values.mean() - slope * x
    se = math.sqrt(float((residuals**2).sum()) / (n - 2) / float((x**2).sum()))
    return slope, 2 * t_tail(abs(slope) / se, n - 2) if se > 0 else None


def order_effect(pairs: Array, order: Array) -> tuple[float | None, float | None]:
    """How much faster the arm seems per position it runs later, and its p.

    ``pairs`` and ``order`` (2n,) as in ``estimate.from_pairs``.
    """
    if pairs.size < 4:
        return None, None
    slope = float((pairs * order).sum() / (order**2).sum())
    residuals = pairs - pairs.mean() - slope * order
    df = pairs.size - 2
    se = math.sqrt(float((residuals**2).sum()) / df / float((order**2).sum()))
    return slope, 2 * t_tail(abs(slope) / se, df) if se > 0 else None


def lag1_correlation(d: Array) -> float | None:
    """Correlation of neighbouring d_k, None below 4 blocks or without any spread."""
    if d.size < 4:
        return None
    centred = d - d.mean()
    total = float((centred**2).sum())
    return float((centred[1:] * centred[:-1]).sum()) / total if total > 0 else None


def outliers(values: Sequence[float]) -> list[bool]:
    """Which values lie more than ``OUTLIER_MADS`` scaled MADs from the median."""
    if len(values) < 4:
        return [False] * len(values)
    data = np.asarray(values)
    away = np.abs(data - np.median(data))
    mad = float(np.median(away)) * _MAD_TO_SD
    if mad == 0:
        return [bool(x) for x in away > 0]
    return [bool(x) for x in away > OUTLIER_MADS * mad]
