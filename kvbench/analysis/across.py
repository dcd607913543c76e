"""Between experiments: two gains compared, and change points in a series of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvbench.analysis.decide import ALPHA, VERDICTS, classify_estimates
from kvbench.analysis.distributions import t_tail
from kvbench.analysis.estimate import Array, Estimate
from kvbench.records import Verdict


@dataclass(frozen=True)
class GainChange:
    """How the gain (arm / baseline) of the second experiment compares with the first's."""

    verdict: Verdict
    ratio: float
    ci95: tuple[float, float]
    df: float


def compare_gains(before: Sequence[float], after: Sequence[float], delta: float) -> GainChange:
    """Welch's interval on mean(after) - mean(before) of the two experiments' d_k.

    Each d_k is free of drift, so the two samples are independent and need no pairing; the arms'
    speeds themselves are not compared, since a day lies between them.
    Raises ``ValueError`` below 2 blocks a side.
    """
    if min(len(before), len(after)) < 2:
        raise ValueError("each experiment needs at least 2 blocks")
    one, two = np.asarray(before), np.asarray(after)
    v1, v2 = (float(x.var(ddof=1)) / x.size for x in (one, two))
    total = v1 + v2
    df = float(one.size + two.size - 2)
    if total > 0:
        df = total**2 / (v1**2 / (one.size - 1) + v2**2 / (two.size - 1))
    mean = float(two.mean() - one.mean())
    estimate = Estimate(mean, math.sqrt(total), df, "Welch over d_k")
    low, high = estimate.interval(0.95)
    verdict = VERDICTS[int(classify_estimates(estimate, delta))]
    return GainChange(verdict, math.exp(mean), (math.exp(low), math.exp(high)), df)


def change_points(values: Sequence[float], delta: float, alpha: float = ALPHA) -> list[int]:
    """Indices at which a series of log values steps by more than ``delta``.

    Binary segmentation: the best split of a segment counts if a t test between its sides, corrected
    for the number of splits tried, rejects at ``alpha`` and the means differ by more than the
    margin; then both sides are searched. At least 3 values a side.
    """
    found: list[int] = []
    pending = [(0, len(values))]
    data = np.asarray(values, dtype=float)
    while pending:
        start, end = pending.pop()
        split = _best_split(data[start:end], math.log1p(delta), alpha)
        if split is not None:
            found.append(start + split)
            pending += [(start, start + split), (start + split, end)]
    return sorted(found)


_LEAST = 3


def _best_split(data: Array, margin: float, alpha: float) -> int | None:
    splits = range(_LEAST, data.size - _LEAST + 1)
    best: tuple[float, int] | None = None
    for split in splits:
        left, right = data[:split], data[split:]
        step = abs(float(right.mean() - left.mean()))
        if step <= margin:
            continue
        df = data.size - 2
        pooled = (left.var() * left.size + right.var() * right.size) / df
        se = math.sqrt(float(pooled) * (1 / left.size + 1 / right.size))
        p = 2 * t_tail(step / se, df) * len(splits) if se > 0 else 0.0
        if p < alpha and (best is None or p < best[0]):
            best = p, split
    return None if best is None else best[1]
