"""Where faults and delays get in: a device asks its hooks before it does anything.

Production code carries no fault of its own. A planted fault (kvbench.decoder.faults) is a Hooks
object that drops a wait, alters an operation or delays it; the default does none of these.
"""

from __future__ import annotations

from kvbench.device.memory import Span
from kvbench.device.ops import Op


class Hooks:
    """The neutral hooks: every wait is made, every operation runs as submitted, without delay."""

    def keep_wait(self, queue: str, site: str, event: str) -> bool:
        """Whether ``queue`` really waits for ``event`` at ``site`` ("ready", "release", ...)."""
        return True

    def keep_record(self, queue: str, event: str) -> bool:
        """Whether ``event`` is really recorded on ``queue``."""
        return True

    def keep_sync(self, queue: str, site: str) -> bool:
        """Whether the host really waits for ``queue`` at ``site``."""
        return True

    def copy_spans(self, dst: Span, src: Span, site: str, split: int) -> tuple[Span, Span]:
        """The spans to copy between in place of ``dst`` and ``src``."""
        return dst, src

    def clears(self, buffer: str) -> bool:
        """Whether fresh memory that should be cleared really is (T5)."""
        return True

    def alter(self, op: Op, queue: str) -> Op:
        """The operation to run in place of ``op``."""
        return op

    def delay(self, op: Op, queue: str) -> float:
        """Seconds for which the executing queue idles before ``op``."""
        return 0.0

    def fail(self, step: str) -> bool:
        """Whether the allocation step ``step`` ("ring", "event", "queue", "graph" ...) fails."""
        return False
