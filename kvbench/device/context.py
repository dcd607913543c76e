"""The context: who borrowed a queue since its last successful wait, and so which waits are moot.

S1: acquiring a queue marks it used and only a successful synchronize clears the mark.
S2: a lease is valid inside one call; in debug mode a lease kept across a synchronize raises.
S4: waits are elided only on a native context with exactly one logical device.
S8: the mark is set before work is submitted, so a failed submission leaves it set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from kvbench.errors import LeaseError

WaitMode = Literal["stock", "elided", "quiet"]
"""How a decoder waits: like a stock engine, the same with elision, or hardly at all."""


class Lease:
    """A queue's native handle, borrowed for the length of one ``with`` block."""

    __slots__ = ("_handle", "_open", "queue")

    def __init__(self, queue: str, handle: Any) -> None:
        self.queue, self._handle, self._open = queue, handle, True

    @property
    def handle(self) -> Any:
        """The native handle; raises LeaseError once the lease has ended (S2)."""
        if not self._open:
            raise LeaseError(f"the lease of queue {self.queue!r} has ended; acquire it again")
        return self._handle

    def __enter__(self) -> Any:
        return self.handle

    def __exit__(self, *_: object) -> None:
        self._open = False


@dataclass(slots=True)
class SiteCount:
    """Synchronize calls at one call site."""

    made: int = 0
    elided: int = 0
    redundant: int = 0
    """Made although nothing had been acquired since the last successful wait."""


@dataclass(slots=True)
class Context:
    """The used mark of every queue, and the count of waits by call site."""

    elide: bool = False
    native: bool = True
    logical_devices: int = 1
    used: dict[str, bool] = field(default_factory=lambda: defaultdict(bool))
    sites: dict[str, SiteCount] = field(default_factory=lambda: defaultdict(SiteCount))

    @property
    def may_elide(self) -> bool:
        """S4: native, one logical device, and asked to."""
        return self.elide and self.native and self.logical_devices == 1

    def acquire(self, queue: str, handle: Any = None) -> Lease:
        """Borrow a queue: it is marked used before anything is submitted (S1, S8)."""
        self.used[queue] = True
        return Lease(queue, handle)

    def synchronize(self, queue: str, site: str, wait: Callable[[], None]) -> None:
        """Wait for ``queue`` at ``site``, unless that wait is known to be over.

        ``wait`` makes the real call and raises if it fails; the mark then stays (S1).
        """
        count = self.sites[site]
        if not self.used[queue]:
            if self.may_elide:
                count.elided += 1
                return
            count.redundant += 1
        count.made += 1
        wait()
        self.used[queue] = False

    def waits(self) -> dict[str, tuple[int, int, int]]:
        """Site to (made, elided, redundant), for the record."""
        return {s: (c.made, c.elided, c.redundant) for s, c in sorted(self.sites.items())}
