"""M3-M6: from blocks to comparisons: estimates, diagnostics, named assumptions, warnings, Holm."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from kvbench.analysis.estimate import Floor
from kvbench.analysis.judge import Block, Rules, compare, measure
from kvbench.analysis.order import block_order
from kvbench.records import Comparison, Verdict


def blocks(
    n: int,
    gain: float,
    sd: float = 0.002,
    seed: int = 1,
    drift: float = 0.0,
    order: float = 0.0,
    arms: str = "AB",
) -> list[Block]:
    """Blocks in the real order: ``drift`` per run, ``order`` per place within a pass."""
    generator = np.random.default_rng(seed)
    found = []
    time = 0
    for number in range(n):
        speeds: dict[str, list[float]] = {arm: [] for arm in arms}
        places: dict[str, list[int]] = {arm: [] for arm in arms}
        for position, arm in enumerate(block_order(arms, number)):
            place = position % len(arms)
            value = 3.0 + drift * time + order * place + float(generator.normal(0, sd))
            speeds[arm].append(value + (gain if arm == "B" else 0.0))
            places[arm].append(position)
            time += 1
        found.append(
            Block(
                number,
                {arm: (v[0], v[1]) for arm, v in speeds.items()},
                {arm: (p[0], p[1]) for arm, p in places.items()},
            )
        )
    return found


def judged(found: list[Block], rules: Rules | None = None) -> Comparison:
    rules = rules or Rules(0.01)
    return compare([measure(found, "B", "A", rules)], rules)[0]


@given(st.floats(-0.3, 0.3), st.integers(2, 6), st.floats(-0.05, 0.05))
def test_drift_and_order_never_reach_the_gain(gain: float, half: int, drift: float) -> None:
    found = judged(blocks(2 * half, gain, sd=0.0, drift=drift, order=0.01))
    assert found.ratio == pytest.approx(math.exp(gain))
    assert found.saved_ms_per_token is not None


def test_the_interval_is_the_t_interval_of_d() -> None:
    found = judged(blocks(6, 0.05))
    low, high = scipy.stats.ttest_1samp(found.d, 0).confidence_interval(0.95)
    assert found.ci95 == pytest.approx((math.exp(low), math.exp(high)))
    assert found.method == "blocks" and found.df == 5 and found.blocks == (0, 1, 2, 3, 4, 5)
    assert found.verdict is Verdict.FASTER and "passes the margin of 1%" in found.reason


@pytest.mark.parametrize(("n", "method"), [(2, "pairs"), (3, "pairs"), (4, "blocks")])
def test_few_blocks_use_pairs_with_an_order_term(n: int, method: str) -> None:
    found = judged(blocks(n, 0.05))
    assert found.method.startswith(method)
    assert (found.df == 2 * n - 2) if method == "pairs" else (found.df == n - 1)
    assert any(w.code == "few-blocks" for w in found.warnings) is (method == "pairs")


@pytest.mark.parametrize("n", [0, 1])
def test_less_than_two_blocks_give_no_interval(n: int) -> None:
    found = judged(blocks(n, 0.05))
    assert found.verdict is Verdict.INCONCLUSIVE and found.ci95 is None and found.ratio is None
    assert found.warnings[0].code == "too-few-blocks"


def test_planted_doubts_are_seen_and_an_innocent_experiment_has_none() -> None:
    assert judged(blocks(12, 0.05, seed=3)).warnings == ()
    drifting = judged(blocks(12, 0.05, drift=-0.01))
    assert [w.code for w in drifting.warnings] == ["drift", "order"]  # drift is also order
    assert drifting.diagnostics.drift_per_block == pytest.approx(-0.04, rel=0.05)
    ordered = judged(blocks(12, 0.05, order=0.02))
    assert [w.code for w in ordered.warnings] == ["order"]
    assert ordered.diagnostics.order_term == pytest.approx(0.02, rel=0.1)
    named = {a.name: a for a in ordered.assumptions}
    assert named["no-order-effect"].holds is False and named["even-n"].holds is True
    assert named["normal-differences"].holds is None


def test_correlated_blocks_are_a_doubt() -> None:
    found = blocks(12, 0.0, sd=0.0)
    wavy = [
        Block(
            b.number,
            {"A": b.speeds["A"], "B": tuple(v + 0.01 * (b.number >= 6) for v in b.speeds["B"])},  # type: ignore[dict-item]
            b.positions,
        )
        for b in found
    ]
    result = judged(wavy)
    assert any(w.code == "lag1" for w in result.warnings)
    assert result.diagnostics.lag1 is not None and result.diagnostics.lag1 > 0.5


def test_a_stored_floor_is_pooled_and_holds_back_small_differences() -> None:
    """M4, and the verdict's max(delta, A/A floor)."""
    quiet = Rules(0.01, floor=Floor(4e-6, 23))
    found = judged(blocks(4, 0.03), quiet)
    assert found.method == "blocks, pooled A/A variance" and found.df == 26
    assert found.verdict is Verdict.FASTER
    noisy = Rules(0.01, floor=Floor(2.5e-3, 23))
    found = judged(blocks(4, 0.03), noisy)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert [w.code for w in found.warnings] == ["not-pooled"]
    assert found.diagnostics.aa_floor == pytest.approx(math.expm1(2.0687 * 0.025), rel=1e-3)


def test_inconclusive_names_the_n_that_would_be_needed() -> None:
    found = judged(blocks(4, 0.02, sd=0.04, seed=3))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.diagnostics.needed_blocks is not None and found.diagnostics.needed_blocks > 4
    assert str(found.diagnostics.needed_blocks) in found.reason


def test_holm_over_the_suites_cells_decides_and_intervals_stay_unadjusted() -> None:
    """M5: alone this cell is FASTER; among twenty it is not, and its interval is the same."""
    rules = Rules(0.001)
    borderline = measure(blocks(6, 0.01, sd=0.008, seed=19), "B", "A", rules)
    (alone,) = compare([borderline], rules)
    assert alone.p is not None and 0.02 < alone.p < 0.05 and alone.verdict is Verdict.FASTER
    others = [measure(blocks(6, 0.0, sd=0.008, seed=s), "B", "A", rules) for s in range(50, 69)]
    among = compare([borderline, *others], rules)[0]
    assert among.verdict is Verdict.INCONCLUSIVE
    assert among.ci95 == alone.ci95 and among.p == alone.p
    assert among.p_adjusted is not None and among.p_adjusted > alone.p


def test_a_look_is_judged_at_its_share_of_alpha() -> None:
    """M3: alpha / 3 for each of three looks."""
    found = blocks(6, 0.01, sd=0.008, seed=19)
    assert judged(found, Rules(0.001, looks=1)).verdict is Verdict.FASTER
    p = judged(found, Rules(0.001)).p
    assert p is not None and 0.05 / 3 < p < 0.05
    assert judged(found, Rules(0.001, looks=3)).verdict is Verdict.INCONCLUSIVE


def test_three_arms_are_each_compared_with_the_baseline() -> None:
    found = blocks(6, 0.05, arms="ABC", drift=0.01)
    rules = Rules(0.01)
    b, c = compare([measure(found, arm, "A", rules) for arm in "BC"], rules)
    assert b.verdict is Verdict.FASTER and c.verdict is Verdict.EQUIVALENT
    assert c.ratio == pytest.approx(1.0, abs=0.003)
