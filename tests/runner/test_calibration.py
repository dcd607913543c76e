"""Issue 6: calibrate stores the A/A floor; ab pools it while environment and cell are the same."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvbench.analysis import decide
from kvbench.analysis.decide import blocks_to_find, classify_estimates, power_to_find
from kvbench.analysis.estimate import Floor, from_blocks, pool
from kvbench.errors import UsageError
from runner import ab
from runner.calibrate import calibrate
from runner.calibration import data_root
from runner.plan import load_plan
from tests.runner.conftest import Told, write_suite


def test_a_calibration_is_pooled_for_the_same_cell_only(tmp_path: Path, told: Told) -> None:
    arms: dict[str, dict[str, Any]] = {"a": {"delay_s": 0.005}, "b": {"delay_s": 0.005}}
    suite = write_suite(tmp_path, arms, 'blocks = 4\ngate = "none"')
    found = calibrate(suite, told.watch, blocks=6, root=tmp_path / "results")
    (reach,) = found.reach
    assert reach.spread > 0 and len(found.summary.cells[0].comparisons[0].d) == 6
    assert [arm.name for arm in found.summary.cells[0].arms] == ["a", "a-again"]
    same = ab.start(suite, told.watch, root=tmp_path / "results")
    floor = load_plan(same.directory).floors["main"]
    assert floor.df == 5 and math.sqrt(floor.variance) == pytest.approx(reach.spread)
    (comparison,) = same.summary.cells[0].comparisons
    assert comparison.diagnostics.aa_floor == pytest.approx(floor.relative(4))
    pooled = "pooled" in comparison.method
    assert pooled is not any(w.code == "not-pooled" for w in comparison.warnings)
    other = write_suite(tmp_path, arms, "blocks = 2", generate=5, name="other")
    assert load_plan(ab.start(other, told.watch, root=tmp_path).directory).floors == {}


@pytest.mark.parametrize("effect", [0.0, -2.0, math.nan, math.inf])
def test_impossible_effects(tmp_path: Path, told: Told, effect: float) -> None:
    """Refused before anything is measured."""
    suite = write_suite(tmp_path, {"a": {}, "b": {}})
    with pytest.raises(UsageError, match="--effect"):
        calibrate(suite, told.watch, effects=[effect], root=tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_damaged_calibration_is_refused_by_name(tmp_path: Path, told: Told) -> None:
    suite = write_suite(tmp_path, {"a": {}, "b": {}}, "blocks = 2")
    calibrate(suite, told.watch, blocks=6, root=tmp_path / "results")
    (path,) = (data_root() / "calibrations").iterdir()
    path.write_text("{}")
    with pytest.raises(UsageError, match=r"\.json: this calibration cannot be read"):
        ab.start(suite, told.watch, root=tmp_path / "results")


def test_an_invalid_a_a_is_not_stored(tmp_path: Path, told: Told) -> None:
    arms = {"a": {"mode": "crash", "count": str(tmp_path / "count"), "after": 6}, "b": {}}
    suite = write_suite(tmp_path, arms, "blocks = 2")
    with pytest.raises(UsageError, match=r"cell main: not calibrated: a\S* failed in block"):
        calibrate(suite, told.watch, blocks=6, root=tmp_path / "results")
    assert not (data_root() / "calibrations").exists()


@pytest.mark.parametrize("blocks", [4, 7])
def test_impossible_numbers_of_blocks(tmp_path: Path, told: Told, blocks: int) -> None:
    with pytest.raises(UsageError, match="--blocks"):
        calibrate(write_suite(tmp_path, {"a": {}, "b": {}}), told.watch, blocks=blocks)


@pytest.mark.parametrize(("effect", "sd"), [(0.02, 0.004), (0.02, 0.01), (0.05, 0.02)])
def test_the_n_named_finds_the_effect_in_nine_of_ten(effect: float, sd: float) -> None:
    """By simulation, calibration included: its own spread is only an estimate, and the n that it
    names must do in nearly all calibrations, not on average over them."""
    generator = np.random.default_rng(1)
    enough = 0
    for _ in range(100):
        floor = Floor(float(generator.normal(0, sd, 12).var(ddof=1)), 11)
        n = blocks_to_find(effect, floor, 0.01)
        assert n is not None
        d = generator.normal(math.log1p(effect), sd, (400, n))
        verdicts = classify_estimates(from_blocks(d), 0.01, floor.relative(n))
        enough += bool(
            (verdicts == decide.FASTER).mean() >= 0.88
        )  # 0.9 less the simulation's error
    assert enough >= 90


@pytest.mark.parametrize("n", [4, 6, 12, 40])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
def test_power_is_the_noncentral_ts_tail(n: int, ratio: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    exact = stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, ratio * math.sqrt(n))
    assert power_to_find(ratio * 0.01, 0.01, n) == pytest.approx(exact, abs=1e-8)


def test_power_with_a_threshold_and_pooling_by_simulation() -> None:
    """What ``ab`` does with a stored calibration finds at least as much as is promised."""
    generator = np.random.default_rng(2)
    size, sd, n, delta = math.log1p(0.02), 0.012, 8, 0.01
    floor = Floor(sd**2, 23)
    threshold = math.log1p(max(delta, floor.relative(n)))
    promised = power_to_find(size, sd, n, threshold)
    d = generator.normal(size, sd, (2000, n))
    alone = (classify_estimates(from_blocks(d), delta, floor.relative(n)) == decide.FASTER).mean()
    assert promised == pytest.approx(alone, abs=0.03)
    pooled = [pool(from_blocks(row), n, floor)[0] for row in d]
    found = [int(classify_estimates(each, delta, floor.relative(n))) for each in pooled]
    assert np.mean(np.array(found) == decide.FASTER) >= promised - 0.02


def test_an_effect_within_the_margin_is_never_found() -> None:
    assert blocks_to_find(0.01, Floor(1e-6, 11), 0.01) is None
