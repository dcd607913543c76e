"""How near an arm came to what a pipeline could reach at most, in a sentence."""

from __future__ import annotations

from kvbench.analysis.ceiling import STEP_MS, ceiling
from kvbench.records import CellSummary
from kvbench.report.words import number, visible


def sentences(cell: CellSummary, baseline: str) -> dict[str, str]:
    """By arm; empty where the ceiling is not known. The baseline itself has none."""
    most = ceiling(cell, baseline)
    if most is None:
        return {}
    found = {}
    for arm in cell.arms:
        share = most.share(arm)
        if arm.name != baseline and share is not None:
            found[arm.name] = (
                f"{visible(arm.name)} reaches {share:.1%} of its ceiling: a step takes "
                f"{number(arm.metrics[STEP_MS])} ms, its copies alone {number(most.copy_ms)} ms, "
                f"the rest alone {number(most.compute_ms)} ms."
            )
    return found
