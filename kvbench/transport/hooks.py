"""Where a planted fault reaches the transport: it may alter a plan, a window or a prefix."""

from __future__ import annotations

from collections.abc import Hashable

from kvbench.device.hooks import Hooks
from kvbench.device.kernels import View
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

    def next_geometry(self, after: Geometry, now: Geometry) -> Geometry:
        """The geometry to deliver ahead for, in place of the next graph's ``after``."""
        return after

    def carry_valid(self, valid: bool) -> bool:
        """Whether to use a carried delivery that was found (in)valid."""
        return valid

    def carried(self, made: int, depth: int) -> int:
        """How many first deliveries to believe made, in place of ``made``."""
        return made

    def view(self, view: View, split: int, slot_bytes: int) -> View:
        """The window that the consumer reads, in place of ``view``."""
        return view

    def graph_key(self, key: Hashable, geometry: Geometry) -> Hashable:
        """What decides whether a captured graph fits, in place of ``key``."""
        return key

    def drains(self, reason: str) -> bool:
        """Whether the host waits for work in flight before it touches its memory (T17)."""
        return True
