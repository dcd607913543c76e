"""How fast a pipeline could be at most: a step cannot take less than its copies or its compute.

Both are read off the baseline of the same cell, which makes every copy on the consumer's own
queue: copy = window bytes a step over the link's bandwidth, compute = the rest of its step. The
rest includes the head, sampling and the host's own time. The bandwidth is the one that the link was
slowed to, else what the baseline's runs measured beside themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.records import ArmSummary, CellSummary

STEP_MS = "step_ms"
WINDOW_MIB = "window_mib_per_step"
WEIGHT_MIB = "weight_mib_per_step"
LINK_LIMIT = "link_limit_gb_s"
MEMORY_LIMIT = "memory_limit_gb_s"
MIB = 1 << 20


@dataclass(frozen=True)
class Traffic:
    """What a step of the baseline must move, and the rates measured beside it."""

    link_bytes: float
    link_rate: float
    """Bytes per second."""
    memory_bytes: float
    """Weights and windows, each read once from device memory."""
    memory_rate: float | None
    """Bytes per second; None where the arm did not measure it."""


@dataclass(frozen=True)
class Ceiling:
    """Milliseconds a step (one token of every sequence)."""

    traffic: Traffic
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


def _traffic(cell: CellSummary, arm: ArmSummary) -> Traffic | None:
    """None unless the baseline delivers windows and the link's bandwidth is known."""
    if not arm.metrics.get(WINDOW_MIB):
        return None
    window, weights = arm.metrics[WINDOW_MIB] * MIB, arm.metrics.get(WEIGHT_MIB, 0.0) * MIB
    slowed = cell.link.get("bytes_per_s")
    rate = slowed if isinstance(slowed, int | float) else arm.metrics.get(LINK_LIMIT, 0.0) * 1e9
    memory = arm.metrics.get(MEMORY_LIMIT)
    if rate <= 0:
        return None
    return Traffic(window, rate, window + weights, memory * 1e9 if memory and weights else None)


def ceiling(cell: CellSummary, baseline: str) -> Ceiling | None:
    """None unless the traffic is known and the baseline makes all copies in order."""
    arm = next((arm for arm in cell.arms if arm.name == baseline), None)
    moved = None if arm is None else _traffic(cell, arm)
    if arm is None or moved is None:
        return None
    step = arm.metrics.get(STEP_MS)
    in_order = arm.bytes.get("ordered", 0) > 0 and not arm.bytes.get("early", 0)
    if not step or not in_order:
        return None
    copy = moved.link_bytes / moved.link_rate * 1e3
    return Ceiling(moved, copy, step - copy) if step > copy else None
