"""Validation: simulated experiments, judged by the code that judges real ones.

Run speeds are exp(noise + drift + effect of the arm). ``kvbench validate`` prints the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvbench.analysis import decide
from kvbench.analysis.distributions import t_quantile
from kvbench.analysis.estimate import Array, from_blocks, from_pairs
from kvbench.analysis.order import block_order

Drift = Literal["none", "linear", "exponential", "quadratic"]
Design = Literal["blocks", "pairs", "AAAABBBB + Welch", "ABAB + paired t", "ABAB + unpaired t"]

DRIFTS: tuple[Drift, ...] = ("none", "linear", "exponential", "quadratic")
CORRELATIONS = (0.0, 0.6)
DESIGNS: tuple[Design, ...] = (
    "blocks",
    "AAAABBBB + Welch",
    "ABAB + paired t",
    "ABAB + unpaired t",
)


@dataclass(frozen=True)
class World:
    """What is true: run SD, total drift over the experiment, AR(1) coefficient, arm B's effect."""

    effect: float = 0.0
    sd: float = 0.005
    drift: Drift = "none"
    drift_size: float = 0.03
    ar1: float = 0.0


@dataclass(frozen=True)
class Rates:
    """Shares of experiments; ``excludes_zero``: the 95% interval, whatever the verdict."""

    excludes_zero: float
    faster: float
    slower: float
    equivalent: float
    inconclusive: float
    half_width: float
    """Mean half-width of the 95% interval, log."""


def run_speeds(world: World, order: Array, experiments: int, seed: int) -> Array:
    """(experiments, runs) log speeds; ``order`` (runs,) is 1 where arm B runs, 0 where A does."""
    generator = np.random.default_rng(seed)
    runs = order.size
    noise = generator.standard_normal((experiments, runs)) * world.sd
    if world.ar1:
        fresh = math.sqrt(1 - world.ar1**2)
        for run in range(1, runs):
            noise[:, run] = world.ar1 * noise[:, run - 1] + fresh * noise[:, run]
    return noise + _drift(world, runs) + order * math.log1p(world.effect)


def _drift(world: World, runs: int) -> Array:
    x = np.arange(runs) / (runs - 1)
    shapes: dict[Drift, Array] = {
        "none": np.zeros(runs),
        "linear": x,
        "exponential": (1 - np.exp(-3 * x)) / (1 - math.exp(-3)),
        "quadratic": x**2,
    }
    return -world.drift_size * shapes[world.drift]


def simulate(
    world: World,
    blocks: int,
    experiments: int,
    seed: int,
    design: Design = "blocks",
    delta: float = 0.01,
) -> Rates:
    """Rates over ``experiments`` experiments of 4 * ``blocks`` runs each."""
    order = _order(design, blocks)
    speeds = run_speeds(world, order, experiments, seed)
    mean, se, df = _estimate(design, speeds, order, blocks)
    half = t_quantile_each(0.975, df) * se
    differs = np.abs(mean) > half
    margin = math.log1p(delta)
    inside = np.abs(mean) + t_quantile_each(0.95, df) * se < margin
    verdicts = decide.classify(mean, differs, inside, margin)
    share = [float((verdicts == index).mean()) for index in range(4)]
    return Rates(
        excludes_zero=float(differs.mean()),
        faster=share[decide.FASTER],
        slower=share[decide.SLOWER],
        equivalent=share[decide.EQUIVALENT],
        inconclusive=share[decide.INCONCLUSIVE],
        half_width=float(half.mean()),
    )


def _order(design: Design, blocks: int) -> Array:
    if design in ("blocks", "pairs"):
        names = [arm for block in range(blocks) for arm in block_order("AB", block)]
    elif design == "AAAABBBB + Welch":
        names = ["A"] * (2 * blocks) + ["B"] * (2 * blocks)
    else:
        names = ["A", "B"] * (2 * blocks)
    return np.array([float(name == "B") for name in names])


def _estimate(
    design: Design, speeds: Array, order: Array, blocks: int
) -> tuple[Array, Array, Array]:
    b = speeds[:, order == 1]
    a = speeds[:, order == 0]
    ones = np.ones(len(speeds))
    if design == "blocks":
        d = (b - a).reshape(-1, blocks, 2).mean(axis=-1)
        estimate = from_blocks(d)
        return estimate.mean, estimate.se, ones * estimate.df
    if design == "pairs":
        first_is_b = order.reshape(-1, 2)[:, 0]
        estimate = from_pairs(b - a, 1 - 2 * first_is_b)
        return estimate.mean, estimate.se, ones * estimate.df
    n = 2 * blocks
    if design == "ABAB + paired t":
        d = b - a
        return d.mean(axis=1), d.std(axis=1, ddof=1) / math.sqrt(n), ones * (n - 1)
    va, vb = a.var(axis=1, ddof=1) / n, b.var(axis=1, ddof=1) / n
    mean = b.mean(axis=1) - a.mean(axis=1)
    if design == "ABAB + unpaired t":
        return mean, np.sqrt(va + vb), ones * (2 * n - 2)
    df = (va + vb) ** 2 / ((va**2 + vb**2) / (n - 1))
    return mean, np.sqrt(va + vb), df


def t_quantile_each(p: float, df: Array) -> Array:
    """Quantiles for an array of degrees of freedom; fractional ones are rounded down to 0.1."""
    rounded = np.floor(df * 10) / 10
    values, inverse = np.unique(rounded, return_inverse=True)
    return np.array([t_quantile(p, float(value)) for value in values])[inverse]
