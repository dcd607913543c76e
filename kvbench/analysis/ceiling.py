"""How fast a pipeline could be at most: a step cannot take less than its copies or its compute.

Both are read off the baseline of the same cell, which makes every copy on the consumer's own
queue: copy = window bytes a step over the link's bandwidth, compute = the rest of its step. The
rest includes the head, sampling and the host's own time.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.records import ArmSummary, CellSummary

STEP_MS = "step_ms"
WINDOW_MIB = "window_mib_per_step"


@dataclass(frozen=True)
class Ceiling:
    """Milliseconds a step (one token of every sequence)."""

    copy_ms: float
    compute_ms: float

    @property
    def step_ms(self) -> float:
        """The shortest possible step."""
        return max(self.copy_ms, self.compute_ms)

    @property
    def ratio(self) -> float:
        """Speed at the ceiling over the baseline's, which takes the sum of both."""
        return (self.copy_ms + self.compute_ms) / self.step_ms

    def share(self, arm: ArmSummary) -> float | None:
        """The arm's speed as a share of the ceiling; None if it reports no step time."""
        step = arm.metrics.get(STEP_MS)
        return self.step_ms / step if step else None


def ceiling(cell: CellSummary, baseline: str) -> Ceiling | None:
    """None unless the link's bandwidth is known and the baseline makes all copies in order."""
    bandwidth = cell.link.get("bytes_per_s")
    arm = next((arm for arm in cell.arms if arm.name == baseline), None)
    if arm is None or not isinstance(bandwidth, int | float) or bandwidth <= 0:
        return None
    step, window = arm.metrics.get(STEP_MS), arm.metrics.get(WINDOW_MIB)
    in_order = arm.bytes.get("ordered", 0) > 0 and not arm.bytes.get("early", 0)
    if not step or not window or not in_order:
        return None
    copy = window * (1 << 20) / bandwidth * 1e3
    return Ceiling(copy, step - copy) if step > copy else None
