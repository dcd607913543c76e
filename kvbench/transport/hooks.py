"""Where a planted fault reaches the transport: it may alter a plan, a window or a prefix."""

from __future__ import annotations

from kvbench.device.hooks import Hooks
from kvbench.transport.plan import Plan
from kvbench.transport.window import Geometry


class TransportHooks(Hooks):
    """Device hooks and the transport's own; neutral by default."""

    def plan(self, plan: Plan) -> Plan:
        """The plan to carry out in place of ``plan``."""
        return plan

    def prefix(self, stream: int, rows: int) -> int:
        """The stable rows to believe in, in place of ``rows``."""
        return rows

    def geometry(self, geometry: Geometry) -> Geometry:
        """The geometry to plan for, in place of the graph's."""
        return geometry

    def carry_valid(self, valid: bool) -> bool:
        """Whether to use a carried delivery that was found (in)valid."""
        return valid

    def drains(self, reason: str) -> bool:
        """Whether the host waits for readers in flight before it rewrites memory (T17)."""
        return True

    def clears_ring(self) -> bool:
        """Whether a fresh ring is cleared (T5)."""
        return True
