"""Issue 6: gains of two experiments against scipy's Welch test; change points in a history."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from kvbench.analysis.across import change_points, compare_gains
from kvbench.records import Verdict


@given(st.integers(0, 2**32 - 1), st.integers(3, 12), st.integers(3, 12))
def test_the_interval_is_welchs(seed: int, n: int, m: int) -> None:
    generator = np.random.default_rng(seed)
    one, two = generator.normal(0.1, 0.01, n), generator.normal(0.12, 0.02, m)
    found = compare_gains(list(one), list(two), 0.01)
    expected = scipy.stats.ttest_ind(two, one, equal_var=False).confidence_interval(0.95)
    assert [math.log(x) for x in found.ci95] == pytest.approx(list(expected), rel=1e-6, abs=1e-9)


def test_a_lost_gain_is_slower_and_the_same_gain_is_equivalent() -> None:
    before = [0.100, 0.101, 0.099, 0.100]
    assert compare_gains(before, [0.05, 0.051, 0.049, 0.05], 0.01).verdict is Verdict.SLOWER
    assert compare_gains(before, before, 0.01).verdict is Verdict.EQUIVALENT
    with pytest.raises(ValueError, match="at least 2"):
        compare_gains([0.1], before, 0.01)


@given(st.integers(0, 2**32 - 1), st.integers(4, 16))
def test_a_planted_step_is_found_where_it_is(seed: int, where: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.002, 20)
    values = noise + 0.1 * (np.arange(20) >= where)
    assert where in change_points(list(values), 0.01)


def test_noise_alone_is_seldom_a_step_and_a_small_step_never_one() -> None:
    generator = np.random.default_rng(3)
    hits = sum(bool(change_points(list(generator.normal(0, 0.02, 20)), 0.01)) for _ in range(400))
    assert hits / 400 <= 0.07
    small = [0.0] * 10 + [0.005] * 10
    assert change_points(small, 0.01) == []
    assert change_points([], 0.01) == [] == change_points([0.1] * 5, 0.01)
