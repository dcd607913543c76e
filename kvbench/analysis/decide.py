"""The verdict rules of METHODOLOGY.md, on numbers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvbench.analysis.distributions import t_quantile
from kvbench.analysis.estimate import Estimate, Floor
from kvbench.records import Verdict

ALPHA = 0.05
POWER = 0.8
MAX_NEEDED_BLOCKS = 10_000
CONFIDENCE = 0.95
"""Of the bound at which a calibrated spread is taken when n is chosen from it."""

EQUIVALENT, FASTER, SLOWER, INCONCLUSIVE = range(4)
VERDICTS = (Verdict.EQUIVALENT, Verdict.FASTER, Verdict.SLOWER, Verdict.INCONCLUSIVE)


def classify(mean: Any, differs: Any, equivalent: Any, threshold: float) -> Any:
    """Index into ``VERDICTS``, elementwise, of the first rule that holds.

    ``differs``: the interval excludes 0. ``equivalent``: TOST rejects both margins.
    ``threshold``: ln(1 + max(delta, A/A floor)), which a difference has to pass.
    """
    large = differs & (np.abs(mean) > threshold)
    signed = np.where(np.asarray(mean) > 0, FASTER, SLOWER)
    return np.where(equivalent, EQUIVALENT, np.where(large, signed, INCONCLUSIVE))


def classify_estimates(
    estimate: Estimate, delta: float, floor: float = 0.0, alpha: float = ALPHA
) -> Any:
    """Judge arrays of estimates at one level ``alpha`` (one cell, or one look of several)."""
    margin = math.log1p(delta)
    differs = np.abs(estimate.mean) > t_quantile(1 - alpha / 2, estimate.df) * estimate.se
    inside = np.abs(estimate.mean) + t_quantile(1 - alpha, estimate.df) * estimate.se < margin
    return classify(estimate.mean, differs, inside, math.log1p(max(delta, floor)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    ranked = sorted(range(len(p_values)), key=p_values.__getitem__)
    for rank, index in enumerate(ranked):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def bonferroni(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values that are never below Holm's."""
    return [min(1.0, len(p_values) * p) for p in p_values]


def smallest_effect(se: float, df: float, alpha: float = ALPHA) -> float:
    """Smallest true |log ratio| whose interval excludes 0 in ``POWER`` of experiments.

    The noncentral t is replaced by a shifted t, which errs to the larger effect.
    """
    return (t_quantile(1 - alpha / 2, df) + t_quantile(POWER, df)) * se


def needed_blocks(
    mean: float, sd: float, delta: float, floor: float = 0.0, power: float = POWER
) -> int | None:
    """Smallest even n that would decide a true effect ``mean`` at block spread ``sd``.

    None if ``MAX_NEEDED_BLOCKS`` would not do: the effect is at the margin itself.
    """
    n = 4
    while n <= MAX_NEEDED_BLOCKS:
        if is_decided(abs(mean), sd, n, delta, floor, power):
            return n
        n += 2 if n < 100 else n // 20 * 2
    return None


def blocks_to_find(
    effect: float, stored: Floor, delta: float, power: float = 0.9, confidence: float = CONFIDENCE
) -> int | None:
    """Smallest even n that calls a true ``effect`` (0.02 = 2%) FASTER in ``power`` of experiments.

    The spread is taken at its upper ``confidence`` bound: a calibration measures it only so well,
    and what it has found is as often too small as too large. None for an effect within the margin,
    or if ``MAX_NEEDED_BLOCKS`` would not do.
    """
    size = abs(math.log1p(effect))
    sd = stored.upper_spread(confidence)
    n = 4
    while n <= MAX_NEEDED_BLOCKS:
        threshold = math.log1p(max(delta, stored.relative(n)))
        if size > threshold and power_to_find(size, sd, n, threshold) >= power:
            return n
        n += 2 if n < 100 else n // 20 * 2
    return None


def power_to_find(size: float, sd: float, n: int, threshold: float = 0.0) -> float:
    """Probability that n blocks call a true difference of ``size`` > 0 FASTER.

    Exact for independent normal d_k of standard deviation ``sd``: their mean must exceed
    ``threshold`` and t * s / sqrt(n), where s is their own spread. Integrated over s, which is
    independent of the mean; without a threshold this is the noncentral t's tail.
    """
    df, se = n - 1, sd / math.sqrt(n)
    if se == 0:
        return float(size > threshold)
    shares = np.linspace(0, 1 + 6 / math.sqrt(df), 401)[1:]  # of s in sd; chi / sqrt(df)
    logs = (df - 1) * np.log(shares) - df * shares**2 / 2
    weights = np.exp(logs - logs.max())
    needed = np.maximum(threshold, t_quantile(1 - ALPHA / 2, df) * se * shares)
    passed = [math.erfc((x - size) / se / math.sqrt(2)) / 2 for x in needed]
    return float((weights * passed).sum() / weights.sum())


def is_decided(
    size: float, sd: float, n: int, delta: float, floor: float = 0.0, power: float = POWER
) -> bool:
    """Whether n blocks decide a true effect of ``size`` (log) in ``power`` of experiments."""
    df, se = n - 1, sd / math.sqrt(n)
    spare = t_quantile(power, df) * se
    threshold = math.log1p(max(delta, floor))
    if size > threshold:
        return size - spare > max(threshold, t_quantile(1 - ALPHA / 2, df) * se)
    both_sides = t_quantile((1 + power) / 2, df) * se if size == 0 else spare
    return size + both_sides + t_quantile(1 - ALPHA, df) * se < math.log1p(delta)


def requirement_exit(requirement: str, verdict: Verdict, lower90: float, delta: float) -> int:
    """0 met, 1 not met, 3 inconclusive. ``lower90``: log, lower end of the 90% interval.

    ``not-slower`` is non-inferiority at one-sided 5%: the lower bound lies above -ln(1 + delta).
    """
    if requirement == "not-slower":
        if lower90 > -math.log1p(delta):
            return 0
        return 1 if verdict is Verdict.SLOWER else 3
    wanted = Verdict.FASTER if requirement == "faster" else Verdict.EQUIVALENT
    if verdict is wanted:
        return 0
    return 3 if verdict is Verdict.INCONCLUSIVE else 1
