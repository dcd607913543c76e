"""M4, M5: distributions against scipy, estimates against scipy and by hand, Holm, power."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from kvbench.analysis import decide, diagnose
from kvbench.analysis.distributions import (
    beta_regularised,
    f_quantile,
    f_tail,
    t_quantile,
    t_tail,
)
from kvbench.analysis.estimate import Estimate, Floor, from_blocks, from_pairs, pool
from kvbench.analysis.order import block_order, positions_are_balanced
from kvbench.records import Verdict

dfs = st.floats(0.5, 2000)


@given(st.floats(1e-6, 1 - 1e-6), dfs)
def test_t_quantile_is_scipys(p: float, df: float) -> None:
    assert t_quantile(p, df) == pytest.approx(scipy.stats.t.ppf(p, df), rel=1e-9, abs=1e-9)


@given(st.floats(-50, 50), dfs)
def test_t_tail_is_scipys(t: float, df: float) -> None:
    assert t_tail(t, df) == pytest.approx(scipy.stats.t.sf(t, df), rel=1e-9, abs=1e-14)


@given(st.floats(1e-3, 1e3), st.integers(1, 200), st.integers(1, 200))
def test_f_tail_is_scipys(f: float, df1: int, df2: int) -> None:
    assert f_tail(f, df1, df2) == pytest.approx(scipy.stats.f.sf(f, df1, df2), rel=1e-9, abs=1e-14)


@given(st.floats(0.001, 0.999), st.integers(1, 100), st.integers(1, 100))
def test_f_quantile_is_scipys(p: float, df1: int, df2: int) -> None:
    assert f_quantile(p, df1, df2) == pytest.approx(scipy.stats.f.ppf(p, df1, df2), rel=1e-8)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1.0])
def test_impossible_probabilities_are_refused(bad: float) -> None:
    for quantile in (lambda p: t_quantile(p, 3), lambda p: f_quantile(p, 3, 3)):
        with pytest.raises(ValueError, match="0 < p < 1"):
            quantile(bad)
    with pytest.raises(ValueError, match="needs a, b > 0"):
        beta_regularised(0, 1, 0.5)


@given(st.integers(0, 2**32 - 1), st.integers(4, 40))
def test_intervals_of_blocks_are_scipys(seed: int, n: int) -> None:
    d = np.random.default_rng(seed).normal(0.01, 0.005, n)
    estimate = from_blocks(d)
    for level in (0.90, 0.95):
        expected = scipy.stats.ttest_1samp(d, 0).confidence_interval(level)
        assert estimate.interval(level) == pytest.approx(tuple(expected), rel=1e-9, abs=1e-12)
    assert estimate.p_differs() == pytest.approx(scipy.stats.ttest_1samp(d, 0).pvalue, rel=1e-7)
    margin = math.log1p(0.01)
    sides = [
        scipy.stats.ttest_1samp(d, -margin, alternative="greater").pvalue,
        scipy.stats.ttest_1samp(d, margin, alternative="less").pvalue,
    ]
    assert estimate.p_equivalent(margin) == pytest.approx(max(sides), rel=1e-7, abs=1e-12)


@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 3]))
def test_pairs_are_a_regression_with_an_order_term(seed: int, n: int) -> None:
    order = np.array([float(o) for k in range(n) for o in ((1, -1) if k % 2 == 0 else (-1, 1))])
    pairs = np.random.default_rng(seed).normal(0.01, 0.005, 2 * n) + 0.003 * order
    estimate = from_pairs(pairs, order)
    fit = scipy.stats.linregress(order, pairs)
    assert estimate.mean == pytest.approx(fit.intercept)
    assert estimate.se == pytest.approx(fit.intercept_stderr)
    assert estimate.df == 2 * n - 2


def test_no_spread_at_all_is_certain_not_a_crash() -> None:
    assert Estimate(0.0, 0.0, 3, "blocks").p_differs() == 1.0
    assert Estimate(0.1, 0.0, 3, "blocks").p_differs() == 0.0
    assert Estimate(0.0, 0.0, 3, "blocks").p_equivalent(0.01) == 0.0


def test_pooling_adds_degrees_of_freedom_unless_the_f_test_rejects() -> None:
    """M4."""
    d = np.array([0.010, 0.012, 0.008, 0.011])
    own = from_blocks(d)
    variance = float(d.var(ddof=1))
    pooled, p = pool(own, 4, Floor(variance, 20))
    assert pooled.df == 23 and pooled.se == pytest.approx(own.se) and p > 0.5
    refused, p = pool(own, 4, Floor(variance * 100, 20))
    assert refused is own and p < 0.05


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_the_step_down_rule(p_values: list[float]) -> None:
    adjusted = decide.holm(p_values)
    ranked = sorted(p_values)
    reject = 0
    while reject < len(ranked) and ranked[reject] <= 0.05 / (len(ranked) - reject):
        reject += 1
    expected = set(ranked[:reject])
    for p, a in zip(p_values, adjusted, strict=True):
        assert a >= p
        if abs(a - 0.05) > 1e-12:
            assert (a < 0.05) == (p in expected)


def test_order_of_two_arms_is_abba_baab() -> None:
    """M1."""
    assert ["".join(block_order("AB", k)) for k in range(3)] == ["ABBA", "BAAB", "ABBA"]


@given(st.integers(2, 8))
def test_each_arm_meets_each_position_equally_often(arms: int) -> None:
    """M1, for more than two arms: reversed in every second pass, rotated between blocks."""
    names = "ABCDEFGH"[:arms]
    met: dict[str, list[int]] = {name: [0] * (2 * arms) for name in names}
    for block in range(arms):
        for position, name in enumerate(block_order(names, block)):
            met[name][position] += 1
    assert positions_are_balanced(arms, arms)
    assert {tuple(counts) for counts in met.values()} == {(1,) * (2 * arms)}
    assert not positions_are_balanced(arms, arms + 1)


@given(st.floats(-0.2, 0.2), st.floats(-0.2, 0.2), st.integers(2, 6), st.integers(1, 3))
def test_linear_drift_never_reaches_d(slope: float, effect: float, arms: int, rounds: int) -> None:
    names = "ABCDEF"[:arms]
    time = 0
    for block in range(arms * rounds):
        total = dict.fromkeys(names, 0.0)
        for name in block_order(names, block):
            total[name] += slope * time + (effect if name == "B" else 0)
            time += 1
        assert (total["B"] - total["A"]) / 2 == pytest.approx(effect, abs=1e-9)


@pytest.mark.parametrize(
    ("mean", "se", "verdict"),
    [
        (0.0, 0.001, Verdict.EQUIVALENT),
        (0.05, 0.001, Verdict.FASTER),
        (-0.05, 0.001, Verdict.SLOWER),
        (0.05, 0.05, Verdict.INCONCLUSIVE),
        (0.009, 0.002, Verdict.INCONCLUSIVE),  # differs from 0, but not by more than delta
        (0.004, 0.001, Verdict.EQUIVALENT),  # differs from 0 and is equivalent: the first rule wins
    ],
)
def test_verdicts_in_the_order_of_the_method(mean: float, se: float, verdict: Verdict) -> None:
    estimate = Estimate(np.array([mean]), np.array([se]), 5, "blocks")
    (index,) = decide.classify_estimates(estimate, 0.01)
    assert decide.VERDICTS[index] is verdict


def test_the_margin_never_grows_with_noise_but_the_floor_can_hold_back_a_difference() -> None:
    estimate = Estimate(np.array([0.02]), np.array([0.001]), 5, "blocks")
    assert decide.VERDICTS[decide.classify_estimates(estimate, 0.01)[0]] is Verdict.FASTER
    held = decide.classify_estimates(estimate, 0.01, floor=0.03)
    assert decide.VERDICTS[held[0]] is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("requirement", "verdict", "lower", "code"),
    [
        ("faster", Verdict.FASTER, 0.01, 0),
        ("faster", Verdict.EQUIVALENT, -0.001, 1),
        ("faster", Verdict.INCONCLUSIVE, -0.02, 3),
        ("equivalent", Verdict.EQUIVALENT, -0.001, 0),
        ("equivalent", Verdict.FASTER, 0.01, 1),
        ("not-slower", Verdict.EQUIVALENT, -0.001, 0),
        ("not-slower", Verdict.FASTER, 0.01, 0),
        ("not-slower", Verdict.INCONCLUSIVE, -0.002, 0),
        ("not-slower", Verdict.INCONCLUSIVE, -0.02, 3),
        ("not-slower", Verdict.SLOWER, -0.05, 1),
    ],
)
def test_requirements(requirement: str, verdict: Verdict, lower: float, code: int) -> None:
    assert decide.requirement_exit(requirement, verdict, lower, 0.01) == code


@pytest.mark.parametrize("mean", [0.0, 0.002, 0.02, -0.02, 0.05])
@pytest.mark.parametrize("sd", [0.003, 0.01])
def test_the_needed_n_decides_and_two_blocks_fewer_often_do_not(mean: float, sd: float) -> None:
    """M6, by simulation: at the n named, at least 75% (aimed at 80%) of experiments decide."""
    n = decide.needed_blocks(mean, sd, 0.01)
    assert n is not None
    d = np.random.default_rng(5).normal(mean, sd, (4000, n))
    decided = decide.classify_estimates(from_blocks(d), 0.01) != decide.INCONCLUSIVE
    assert decided.mean() >= 0.75


def test_an_effect_at_the_margin_is_never_decided() -> None:
    assert decide.needed_blocks(math.log1p(0.01), 0.02, 0.01) is None


def test_the_smallest_effect_is_found_in_four_of_five_experiments() -> None:
    sd, n = 0.01, 6
    effect = decide.smallest_effect(sd / math.sqrt(n), n - 1)
    d = np.random.default_rng(6).normal(effect, sd, (20_000, n))
    estimate = from_blocks(d)
    found = np.abs(estimate.mean) > t_quantile(0.975, n - 1) * estimate.se
    assert 0.75 <= found.mean() <= 0.90


@given(st.floats(-1, 1), st.integers(3, 30))
def test_slope_is_linregress(slope: float, n: int) -> None:
    values = slope * np.arange(n) + np.random.default_rng(n).normal(0, 0.1, n)
    found, p = diagnose.slope_over_blocks(values)
    fit = scipy.stats.linregress(np.arange(n), values)
    assert found == pytest.approx(fit.slope) and p == pytest.approx(fit.pvalue, rel=1e-6)


def test_order_effect_and_lag1_find_what_is_planted() -> None:
    order = np.array([1.0, -1.0, -1.0, 1.0] * 3)
    noise = np.random.default_rng(1).normal(0, 0.0005, 12)
    found, p = diagnose.order_effect(0.01 + 0.004 * order + noise, order)
    assert found == pytest.approx(0.004, abs=0.001) and p is not None and p < 0.001
    assert diagnose.lag1_correlation(np.array([1.0, -1.0] * 5)) == pytest.approx(-0.9)
    assert diagnose.lag1_correlation(np.array([1.0, 1.0, 1.0, 1.0])) is None


def test_outliers_are_flagged_by_mad() -> None:
    """M5: flagged; nothing here can drop them."""
    assert diagnose.outliers([1, 1.01, 0.99, 1.02, 2]) == [False] * 4 + [True]
    assert diagnose.outliers([1, 1, 1, 1, 1.1]) == [False] * 4 + [True]
    assert diagnose.outliers([1, 9, 1]) == [False] * 3
