"""How near an arm came to what a pipeline could reach at most, and what bounds it, in sentences."""

from __future__ import annotations

from kvbench.analysis.ceiling import MIB, STEP_MS, Traffic, ceiling
from kvbench.records import CellSummary
from kvbench.report.words import number, visible


def sentences(cell: CellSummary, baseline: str) -> dict[str, str]:
    """By arm; the baseline's says what must move. Empty where the ceiling is not known."""
    most = ceiling(cell, baseline)
    if most is None:
        return {}
    found = {baseline: _traffic(most.traffic)}
    for arm in cell.arms:
        share = most.share(arm)
        if arm.name != baseline and share is not None:
            found[arm.name] = (
                f"{visible(arm.name)} reaches {share:.1%} of its ceiling: a step takes "
                f"{number(arm.metrics[STEP_MS])} ms, its copies alone {number(most.copy_ms)} ms, "
                f"the rest alone {number(most.compute_ms)} ms."
            )
    return found


def _traffic(moved: Traffic) -> str:
    link = _at(moved.link_bytes, moved.link_rate)
    said = f"A step moves {number(moved.link_bytes / MIB)} MiB over the link ({link})"
    if moved.memory_rate is None:
        return f"{said}."
    memory = _at(moved.memory_bytes, moved.memory_rate)
    return (
        f"{said} and reads {number(moved.memory_bytes / MIB)} MiB of device memory, weights and "
        f"windows ({memory})."
    )


def _at(nbytes: float, rate: float) -> str:
    return f"at {number(rate / 1e9)} GB/s {number(nbytes / rate * 1e3)} ms"
