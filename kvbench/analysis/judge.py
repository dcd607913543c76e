"""From one cell's counted runs to the comparison of one arm with the baseline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from kvbench.analysis import decide, diagnose
from kvbench.analysis.estimate import Array, Estimate, Floor, from_blocks, from_pairs, pool
from kvbench.records import Assumption, Comparison, Diagnostics, Verdict, Warn

PAIRS_UP_TO = 3
"""Blocks up to which the 2n adjacent pairs with an order term are used (M4)."""
_NOTICE_P = 0.01
_NOTICE_LAG1 = 0.5


@dataclass(frozen=True)
class Block:
    """One complete block: ``speeds[arm]`` = log tokens/s in pass 0 and 1, at ``positions[arm]``."""

    number: int
    speeds: Mapping[str, tuple[float, float]]
    positions: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Rules:
    """What was fixed in advance: the margin, the level of this look, the machine's A/A floor."""

    delta: float
    looks: int = 1
    floor: Floor | None = None

    @property
    def alpha(self) -> float:
        """Level at which one look of one cell is judged."""
        return decide.ALPHA / self.looks


@dataclass(frozen=True)
class Measured:
    """An estimate with everything that explains it, before the cells' joint correction."""

    arm: str
    baseline: str
    blocks: tuple[int, ...]
    d: Array
    estimate: Estimate | None
    diagnostics: Diagnostics
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Warn, ...]
    saved_ms_per_token: float | None


def measure(blocks: Sequence[Block], arm: str, baseline: str, rules: Rules) -> Measured:
    """Estimate ``arm`` against ``baseline`` (M4) and look at the data (M6)."""
    d = np.array([(sum(b.speeds[arm]) - sum(b.speeds[baseline])) / 2 for b in blocks])
    pairs = np.array([b.speeds[arm][i] - b.speeds[baseline][i] for b in blocks for i in range(2)])
    order = np.array(
        [float(b.positions[arm][i] - b.positions[baseline][i]) for b in blocks for i in range(2)]
    )
    warnings: list[Warn] = []
    estimate = _estimate(d, pairs, order, rules, warnings)
    overall = np.array([(sum(b.speeds[arm]) + sum(b.speeds[baseline])) / 4 for b in blocks])
    drift, drift_p = diagnose.slope_over_blocks(overall)
    order_term, order_p = diagnose.order_effect(pairs, order)
    lag1 = diagnose.lag1_correlation(d)
    diagnostics = Diagnostics(
        drift_per_block=drift,
        order_term=order_term,
        lag1=lag1,
        aa_floor=None if rules.floor is None else rules.floor.relative(max(len(blocks), 1)),
        smallest_effect=_smallest(estimate, rules),
    )
    _notice(warnings, drift, drift_p, order_term, order_p, lag1)
    assumptions = _assumptions(len(blocks), lag1, order_p)
    return Measured(
        arm,
        baseline,
        tuple(b.number for b in blocks),
        d,
        estimate,
        diagnostics,
        assumptions,
        tuple(warnings),
        _saved_ms(blocks, arm, baseline),
    )


def _estimate(
    d: Array, pairs: Array, order: Array, rules: Rules, warnings: list[Warn]
) -> Estimate | None:
    if d.size < 2:
        warnings.append(Warn("too-few-blocks", f"{d.size} blocks give no interval; 2 are needed"))
        return None
    if d.size <= PAIRS_UP_TO:
        warnings.append(
            Warn("few-blocks", f"{d.size} blocks: pairs with an order term, which lean on each run")
        )
        return from_pairs(pairs, order)
    estimate = from_blocks(d)
    if rules.floor is None:
        return estimate
    pooled, p = pool(estimate, d.size, rules.floor)
    if pooled is estimate:
        warnings.append(
            Warn(
                "not-pooled",
                f"the stored A/A variance differs from this experiment's (F-test p = {p:.3g}) "
                "and was not pooled",
            )
        )
    return pooled


def _smallest(estimate: Estimate | None, rules: Rules) -> float | None:
    if estimate is None:
        return None
    return decide.smallest_effect(float(estimate.se), estimate.df, rules.alpha)


def _saved_ms(blocks: Sequence[Block], arm: str, baseline: str) -> float | None:
    if not blocks:
        return None
    per_token = {
        name: math.exp(-sum(sum(b.speeds[name]) for b in blocks) / 2 / len(blocks)) * 1e3
        for name in (arm, baseline)
    }
    return per_token[baseline] - per_token[arm]


def _notice(
    warnings: list[Warn],
    drift: float | None,
    drift_p: float | None,
    order_term: float | None,
    order_p: float | None,
    lag1: float | None,
) -> None:
    if drift is not None and drift_p is not None and drift_p < _NOTICE_P:
        warnings.append(
            Warn("drift", f"speed drifted by {100 * math.expm1(drift):+.2f}% a block; it cancels")
        )
    if order_term is not None and order_p is not None and order_p < _NOTICE_P:
        warnings.append(
            Warn(
                "order",
                f"a run is {100 * math.expm1(order_term):+.2f}% faster for each place later in "
                "its block; it cancels",
            )
        )
    if lag1 is not None and abs(lag1) > _NOTICE_LAG1:
        warnings.append(
            Warn("lag1", f"neighbouring blocks correlate ({lag1:+.2f}); the interval leans on it")
        )


def _assumptions(n: int, lag1: float | None, order_p: float | None) -> tuple[Assumption, ...]:
    return (
        Assumption(
            "even-n",
            "an even number of blocks, so that quadratic drift cancels",
            n % 2 == 0,
            f"n = {n}",
        ),
        Assumption(
            "independent-blocks",
            "differences of neighbouring blocks are not correlated",
            None if lag1 is None else abs(lag1) <= _NOTICE_LAG1,
            "" if lag1 is None else f"lag-1 correlation {lag1:+.2f}",
        ),
        Assumption(
            "no-order-effect",
            "a run's speed does not depend on its place; where it does, reversed passes cancel it",
            None if order_p is None else order_p >= _NOTICE_P,
            "" if order_p is None else f"p = {order_p:.3g}",
        ),
        Assumption(
            "normal-differences",
            "block differences of log speed are close enough to normal for a t interval",
            None,
            "cannot be checked at this n; validated by simulation (docs/METHODOLOGY.md)",
        ),
    )


Adjust = Callable[[Sequence[float]], list[float]]


def compare(
    measured: Sequence[Measured], rules: Rules, adjust: Adjust = decide.holm
) -> list[Comparison]:
    """Verdicts of a whole suite: the correction over all its comparisons decides (M5)."""
    margin = math.log1p(rules.delta)
    known = [m.estimate for m in measured if m.estimate is not None]
    differs = iter(adjust([e.p_differs() for e in known]))
    equivalent = iter(adjust([e.p_equivalent(margin) for e in known]))
    return [
        _undecided(m)
        if m.estimate is None
        else _decided(m, m.estimate, next(differs), next(equivalent), rules)
        for m in measured
    ]


def _undecided(m: Measured) -> Comparison:
    return Comparison(
        arm=m.arm,
        baseline=m.baseline,
        verdict=Verdict.INCONCLUSIVE,
        reason=f"{len(m.blocks)} complete blocks give no interval",
        blocks=m.blocks,
        d=tuple(map(float, m.d)),
        diagnostics=m.diagnostics,
        assumptions=m.assumptions,
        warnings=m.warnings,
        saved_ms_per_token=m.saved_ms_per_token,
    )


def _decided(
    m: Measured, estimate: Estimate, p_differs: float, p_equivalent: float, rules: Rules
) -> Comparison:
    mean = float(estimate.mean)
    floor = m.diagnostics.aa_floor or 0.0
    index = decide.classify(
        mean,
        p_differs < rules.alpha,
        p_equivalent < rules.alpha,
        math.log1p(max(rules.delta, floor)),
    )
    verdict = decide.VERDICTS[int(index)]
    diagnostics = m.diagnostics
    if verdict is Verdict.INCONCLUSIVE:
        spread = float(estimate.se) * math.sqrt(len(m.blocks))
        diagnostics = msgspec.structs.replace(
            diagnostics, needed_blocks=decide.needed_blocks(mean, spread, rules.delta, floor)
        )
    low, high = (float(x) for x in estimate.interval(0.95))
    low90, high90 = (float(x) for x in estimate.interval(0.90))
    return Comparison(
        arm=m.arm,
        baseline=m.baseline,
        verdict=verdict,
        reason=_reason(verdict, mean, rules.delta, floor, diagnostics.needed_blocks),
        ratio=math.exp(mean),
        ci95=(math.exp(low), math.exp(high)),
        ci90=(math.exp(low90), math.exp(high90)),
        blocks=m.blocks,
        d=tuple(map(float, m.d)),
        method=estimate.method,
        df=float(estimate.df),
        p=estimate.p_differs(),
        p_adjusted=p_differs,
        diagnostics=diagnostics,
        assumptions=m.assumptions,
        warnings=m.warnings,
        saved_ms_per_token=m.saved_ms_per_token,
    )


def _reason(verdict: Verdict, mean: float, delta: float, floor: float, needed: int | None) -> str:
    if verdict is Verdict.EQUIVALENT:
        return f"the 90% interval lies inside the margin of {100 * delta:g}%"
    if verdict is not Verdict.INCONCLUSIVE:
        bar = "margin" if delta >= floor else "A/A floor"
        return (
            f"the 95% interval excludes 0 and {100 * math.expm1(mean):+.2f}% passes the {bar} "
            f"of {100 * max(delta, floor):.3g}%"
        )
    if needed is None:
        return "the effect lies too near the margin for any number of blocks to decide"
    return f"neither a difference nor equivalence is shown; about {needed} blocks would show one"
