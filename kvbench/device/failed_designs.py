"""Designs of the used mark that failed, kept so that a gate can be seen to catch each (S6).

Each replaces ``Context`` whole. The first three decide by *who* submits whether the mark is set,
so some submission passes beside it and a wait that was needed is elided; the last never elides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from kvbench.device.context import Context, Lease

Design = Literal["queue", "submit_sites", "scheduler", "entry_points", "rearmed"]
"""``queue`` is the one that works; the others are named after where they keep the mark."""

SITES_WHEN_WRITTEN = frozenset({"embed", "attn_in", "attend", "mlp", "head", "choose", "upload"})
OPTED_IN = frozenset({"upload", "early", "late", "ordered"})


class _MarkedBySome(Context):
    """Sets the mark for some submissions only."""

    def marks(self, by: str) -> bool:
        """Whether a submission made for ``by`` sets the mark."""
        raise NotImplementedError

    def acquire(self, queue: str, handle: Any = None, by: str = "") -> Lease:
        """As the real one, but for the mark."""
        before = self.used[queue]
        lease = super().acquire(queue, handle, by)
        self.used[queue] = before or self.marks(by)
        return lease


class SubmitSites(_MarkedBySome):
    """A flag on the engine's context set by each submit site; the output copies came later."""

    def marks(self, by: str) -> bool:
        return by in SITES_WHEN_WRITTEN


class Scheduler(_MarkedBySome):
    """A flag in the scheduler: set when a graph is computed, not by copies made directly."""

    def marks(self, by: str) -> bool:
        return by in SITES_WHEN_WRITTEN - {"upload"} or by == "launch"


class EntryPoints(_MarkedBySome):
    """A flag at shared copy entry points behind an opt-in: graphs are submitted beside them."""

    def marks(self, by: str) -> bool:
        return by in OPTED_IN


@dataclass(slots=True)
class Rearmed(Context):
    """An event is recorded after the drain, through the accessor: the mark is set at once again."""

    def synchronize(
        self, queue: str, site: str, wait: Callable[[], int], *, for_result: bool = True
    ) -> None:
        """Wait, then record the event that is meant to say "nothing since"."""
        super(Rearmed, self).synchronize(queue, site, wait, for_result=for_result)
        with self.acquire(queue, by="record"):
            pass


CONTEXTS: dict[Design, type[Context]] = {
    "queue": Context,
    "submit_sites": SubmitSites,
    "scheduler": Scheduler,
    "entry_points": EntryPoints,
    "rearmed": Rearmed,
}
