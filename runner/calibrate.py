"""``kvbench calibrate``: the suite's baseline against itself, and what that says about n."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from kvbench.analysis.decide import CONFIDENCE, blocks_to_find
from kvbench.analysis.estimate import Floor
from kvbench.errors import UsageError
from kvbench.records import Summary
from kvbench.spec import load_suite
from runner import ab
from runner.calibration import Calibration, aa_suite, store_calibrations
from runner.plan import load_plan, new_plan
from runner.store import DEFAULT_ROOT

EFFECTS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.10)
MIN_BLOCKS = 6
MAX_EFFECT = 100.0


class Reach(NamedTuple):
    """What this machine can find in one cell."""

    cell: str
    spread: float
    """Standard deviation of d_k, log."""
    spread_at_most: float
    """Its upper 95% bound; ``needed`` reckons with it."""
    floors: dict[int, float]
    """n -> A/A floor (a ratio less 1)."""
    needed: dict[float, int | None]
    """Effect -> blocks that find it in 90% of experiments; None: none do, or within the margin."""


class Calibrated(NamedTuple):
    """Where the A/A experiment lies, what it gave, and what follows."""

    directory: Path
    summary: Summary
    reach: list[Reach]


def calibrate(
    suite_ref: str,
    watch: ab.MakeWatcher,
    *,
    blocks: int = 12,
    root: Path = DEFAULT_ROOT,
    effects: Sequence[float] = (),
    command: Sequence[str] = (),
    overrides: ab.Overrides | None = None,
    begun: Callable[[Path], None] = lambda _: None,
) -> Calibrated:
    """Measure and store the A/A floor of every cell of a suite.

    Raises ``UsageError`` for what cannot be asked, and if the A/A itself is INVALID; nothing is
    stored then.
    """
    if blocks < MIN_BLOCKS or blocks % 2:
        raise UsageError(f"--blocks: {blocks}; an even number from {MIN_BLOCKS} is needed")
    for effect in effects:
        if not 0 < effect <= MAX_EFFECT:
            raise UsageError(f"--effect: {effect:g}; above 0 and at most {MAX_EFFECT:g} is needed")
    suite, _ = load_suite(suite_ref)
    if overrides is not None:
        suite, _ = overrides.apply(suite)
    own = aa_suite(suite, blocks)
    done = ab.start_plan(new_plan(own, suite_ref, command), watch, root=root, begun=begun)
    _, cells = load_plan(done.directory).resolve()
    stored = store_calibrations(done.summary, cells, own)
    reach = [
        _reach(cell.name, calibration, suite.delta, (*EFFECTS, *effects))
        for cell, calibration in zip(cells, stored, strict=True)
    ]
    return Calibrated(done.directory, done.summary, reach)


def _reach(cell: str, calibration: Calibration, delta: float, effects: Sequence[float]) -> Reach:
    stored = Floor(calibration.variance, calibration.df)
    return Reach(
        cell=cell,
        spread=calibration.variance**0.5,
        spread_at_most=stored.upper_spread(CONFIDENCE),
        floors={n: stored.relative(n) for n in (4, 6, 8, 12)},
        needed={effect: blocks_to_find(effect, stored, delta) for effect in sorted(set(effects))},
    )
