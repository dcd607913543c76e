"""METHODOLOGY.md's claims about its own verdicts, each checked by simulation.

``kvbench validate`` prints this; results/validation/ holds its committed output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvbench.analysis.simulate import (
    CORRELATIONS,
    DESIGNS,
    DRIFTS,
    Design,
    Drift,
    Rates,
    World,
    simulate,
)

DELTA = 0.01


@dataclass(frozen=True)
class Row:
    """One cell of the table: a design in a world, and what came out."""

    design: Design
    blocks: int
    world: World
    rates: Rates


def false_positives(experiments: int, seed: int = 1) -> Iterator[Row]:
    """No true effect: every design under every drift and correlation; blocks also at n = 4, 6."""
    for design in DESIGNS:
        for blocks in (4, 5, 6) if design == "blocks" else (5,):
            for drift in DRIFTS:
                for ar1 in CORRELATIONS:
                    yield _row(design, blocks, World(drift=drift, ar1=ar1), experiments, seed)
    for drift in DRIFTS:
        yield _row("pairs", 2, World(drift=drift), experiments, seed)


def power(experiments: int, seed: int = 2) -> Iterator[Row]:
    """True effects of delta and 2 delta on a quiet (0.5%) and a noisy (2%) machine."""
    conditions: tuple[tuple[Drift, float], ...] = (("none", 0.0), ("linear", 0.6))
    for sd in (0.005, 0.02):
        for blocks in (4, 5, 6, 12):
            for effect in (0.0, DELTA, 2 * DELTA, -2 * DELTA):
                for drift, ar1 in conditions:
                    world = World(effect=effect, sd=sd, drift=drift, ar1=ar1)
                    yield _row("blocks", blocks, world, experiments, seed)
    for effect in (0.0, DELTA):
        world = World(effect=effect, drift="linear")
        yield _row("ABAB + unpaired t", 5, world, experiments, seed)


def _row(design: Design, blocks: int, world: World, experiments: int, seed: int) -> Row:
    return Row(design, blocks, world, simulate(world, blocks, experiments, seed, design, DELTA))


@dataclass(frozen=True)
class Claim:
    """A sentence of METHODOLOGY.md or of the project's goals, its rows and its bounds."""

    text: str
    about: Callable[[Row], bool]
    value: Callable[[Rates], float]
    low: float
    high: float


def _shipped(row: Row) -> bool:
    return row.design == "blocks" and row.world.effect == 0 and row.world.sd == 0.005


CLAIMS = (
    Claim(
        "blocks: the 95% interval excludes 0 in <= 5.5% under every drift and AR(1) 0.6",
        lambda r: _shipped(r) and r.blocks in (4, 5, 6),
        lambda r: r.excludes_zero,
        0.0,
        0.055,
    ),
    Claim(
        "blocks: FASTER or SLOWER without an effect at SD 0.5% in <= 0.1%",
        _shipped,
        lambda r: r.faster + r.slower,
        0.0,
        0.001,
    ),
    Claim(
        "AAAABBBB + Welch: 55-100% false positives under drift",
        lambda r: r.design == "AAAABBBB + Welch" and r.world.drift != "none",
        lambda r: r.excludes_zero,
        0.55,
        1.0,
    ),
    Claim(
        "ABAB + paired t: 6-25% false positives under drift",
        lambda r: r.design == "ABAB + paired t" and r.world.drift != "none",
        lambda r: r.excludes_zero,
        0.06,
        0.25,
    ),
    Claim(
        "ABAB + unpaired t: <= 0.3% false positives under drift",
        lambda r: (
            r.design == "ABAB + unpaired t" and r.world.effect == 0 and r.world.drift != "none"
        ),
        lambda r: r.excludes_zero,
        0.0,
        0.003,
    ),
    Claim(
        "ABAB + unpaired t: only 21-57% power for +1% under drift",
        lambda r: r.design == "ABAB + unpaired t" and r.world.effect == DELTA,
        lambda r: r.excludes_zero,
        0.21,
        0.57,
    ),
    Claim(
        "blocks: the interval excludes 0 for a true +1% in 89-100% at n = 5",
        lambda r: _is(r, sd=0.005, effect=DELTA, blocks=5),
        lambda r: r.excludes_zero,
        0.89,
        1.0,
    ),
    Claim(
        "blocks: a true +1% (delta) is FASTER half the time at most",
        lambda r: r.design == "blocks" and r.world.effect == DELTA and r.world.sd == 0.005,
        lambda r: r.faster,
        0.0,
        0.52,
    ),
    Claim(
        "blocks: +2% (2 delta) is FASTER in >= 97% at n = 6, SD 0.5%",
        lambda r: _is(r, sd=0.005, effect=2 * DELTA, blocks=6),
        lambda r: r.faster,
        0.97,
        1.0,
    ),
    Claim(
        "blocks: a noisy machine (SD 2%) calls a true +2% EQUIVALENT in <= 5%",
        lambda r: r.design == "blocks" and r.world.sd == 0.02 and abs(r.world.effect) == 2 * DELTA,
        lambda r: r.equivalent,
        0.0,
        0.05,
    ),
    Claim(
        "blocks: no verdict in the wrong direction for +-2% at SD 0.5%",
        lambda r: r.design == "blocks" and r.world.sd == 0.005 and abs(r.world.effect) == 2 * DELTA,
        lambda r: min(r.faster, r.slower),
        0.0,
        0.0,
    ),
    Claim(
        "pairs with an order term at n = 2: false positives <= 5.5% under every drift",
        lambda r: r.design == "pairs",
        lambda r: r.excludes_zero,
        0.0,
        0.055,
    ),
)


def _is(row: Row, sd: float, effect: float, blocks: int) -> bool:
    world = row.world
    return (
        row.design == "blocks"
        and world.sd == sd
        and world.effect == effect
        and row.blocks == blocks
    )


@dataclass(frozen=True)
class Finding:
    """A claim with the extreme rates that were found."""

    claim: Claim
    lowest: float
    highest: float

    @property
    def holds(self) -> bool:
        """Whether every row about it lies within its bounds."""
        return self.claim.low <= self.lowest and self.highest <= self.claim.high


def check(rows: list[Row]) -> list[Finding]:
    """Every claim against the rows that it is about."""
    findings = []
    for claim in CLAIMS:
        values = [claim.value(row.rates) for row in rows if claim.about(row)]
        findings.append(Finding(claim, min(values), max(values)))
    return findings


def markdown(rows: list[Row], findings: list[Finding], experiments: int) -> str:
    """The committed document: claims first, then every cell."""
    lines = [
        "# Validation of the verdicts by simulation",
        "",
        f"Printed by `kvbench validate`; {experiments:,} simulated experiments a cell, judged by "
        f"the code that judges real ones (delta {DELTA:.0%}, run SD 0.5% unless stated, drift 3% "
        "over the experiment).",
        "",
        "| claim | found | holds |",
        "|---|---|---|",
    ]
    lines += [
        f"| {f.claim.text} | {f.lowest:.2%} to {f.highest:.2%} | {'yes' if f.holds else 'NO'} |"
        for f in findings
    ]
    lines += [
        "",
        "| design | n | SD | effect | drift | AR(1) | excludes 0 | FASTER | SLOWER | EQUIVALENT "
        "| INCONCLUSIVE | half-width |",
        "|---|--:|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_line(row) for row in rows]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    w, r = row.world, row.rates
    rates = (r.excludes_zero, r.faster, r.slower, r.equivalent, r.inconclusive, r.half_width)
    shown = " | ".join(f"{rate:.2%}" for rate in rates)
    return (
        f"| {row.design} | {row.blocks} | {w.sd:.1%} | {w.effect:+.0%} | {w.drift} | {w.ar1:g} "
        f"| {shown} |"
    )
