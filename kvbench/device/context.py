"""The context: who borrowed a queue since its last successful wait, and so which waits are moot.

S1: acquiring a queue marks it used and only a successful synchronize clears the mark.
S2: a lease is valid inside one call; in debug mode a lease kept across a synchronize raises.
S3: there is no other way to a queue than ``acquire``, so there is no second mark to forget.
S4: waits are elided only on a native context with exactly one logical device.
S8: the mark is set before work is submitted, so a failed submission leaves it set.

Beyond the origin, ``quiet`` also skips a wait for a record that the host is known to be behind:
it waited for a later one of the same queue, or for the whole queue, since.
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
    """A handle (a queue's, or a BLAS handle bound to a queue), borrowed for one ``with`` block."""

    __slots__ = ("_guarded", "_handle", "_open", "queue")

    def __init__(self, queue: str, handle: Any, guarded: set[Lease] | None) -> None:
        """``guarded``: the open leases of a context in debug mode, None outside it."""
        self.queue, self._handle, self._open, self._guarded = queue, handle, True, guarded
        if guarded is not None:
            guarded.add(self)

    @property
    def handle(self) -> Any:
        """The native handle; raises LeaseError once the lease has ended (S2)."""
        if not self._open:
            raise LeaseError(f"the lease of queue {self.queue!r} has ended; acquire it again")
        return self._handle

    def __enter__(self) -> Any:
        return self.handle if self._guarded is None else GuardedHandle(self)

    def __exit__(self, *_: object) -> None:
        self._open = False
        if self._guarded is not None:
            self._guarded.discard(self)


class GuardedHandle:
    """Debug mode's stand-in for a native handle: every use asks whether the lease is still on."""

    __slots__ = ("_lease",)

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lease.handle, name)


@dataclass(slots=True)
class SiteCount:
    """Synchronize calls at one call site."""

    made: int = 0
    elided: int = 0
    redundant: int = 0
    """Made although nothing was in flight that the wait could have been for, or although nothing
    that was queued is touched by the host before its next wait (the mark is per queue, not per
    result)."""


@dataclass(slots=True)
class Context:
    """The used mark of every queue, and the count of waits by call site."""

    mode: WaitMode = "stock"
    native: bool = True
    logical_devices: int = 1
    debug: bool = False
    """Whether leases are watched (S2)."""
    used: dict[str, bool] = field(default_factory=lambda: defaultdict(bool))
    sites: dict[str, SiteCount] = field(default_factory=lambda: defaultdict(SiteCount))
    open_leases: set[Lease] = field(default_factory=set)
    """Debug mode: leases that have not ended."""
    _behind: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Latest record of each queue that the host is known to be behind."""

    @property
    def may_elide(self) -> bool:
        """S4: native, one logical device, and asked to."""
        return self.mode != "stock" and self.native and self.logical_devices == 1

    def acquire(self, queue: str, handle: Any = None, by: str = "") -> Lease:
        """Borrow a queue: it is marked used before anything is submitted (S1, S8).

        ``handle`` is the queue's own or a BLAS handle bound to it; ``by`` names what for.
        """
        self.used[queue] = True
        return Lease(queue, handle, self.open_leases if self.debug else None)

    def synchronize(
        self, queue: str, site: str, wait: Callable[[], int], *, for_result: bool = True
    ) -> None:
        """Wait for ``queue`` at ``site``, unless that wait is known to be over.

        ``wait`` makes the real call, returns the number of the latest record it covers, and
        raises if it fails; the mark then stays (S1). ``for_result`` False: the host touches
        nothing of what was queued before it waits again.
        """
        self._no_open_lease(queue, site)
        count = self.sites[site]
        idle = not self.used[queue]
        if idle and self.may_elide:
            count.elided += 1
            return
        count.made += 1
        count.redundant += idle or not for_result
        self._behind[queue] = max(self._behind[queue], wait())
        self.used[queue] = False

    def synchronize_record(
        self, queue: str, record: int, site: str, wait: Callable[[], None]
    ) -> None:
        """Wait for one record of ``queue`` at ``site``; only ``quiet`` ever elides this.

        A record never made is number 0: there is nothing to wait for (H21), and so nothing known.
        """
        self._no_open_lease(queue, site)
        count = self.sites[site]
        known = record <= self._behind[queue]
        if known and record and self.mode == "quiet" and self.may_elide:
            count.elided += 1
            return
        count.made += 1
        count.redundant += known
        wait()
        self._behind[queue] = max(self._behind[queue], record)

    def learn(self, queue: str, record: int) -> None:
        """The host is behind ``record`` of ``queue`` through another queue: it waited for one
        that had waited for this record."""
        self._behind[queue] = max(self._behind[queue], record)

    def _no_open_lease(self, queue: str, site: str) -> None:
        kept = next((lease for lease in self.open_leases if lease.queue == queue), None)
        if kept is not None:
            raise LeaseError(
                f"a lease of queue {queue!r} is kept across the synchronize at {site!r}; "
                "end it first and acquire the queue again"
            )

    def waits(self) -> dict[str, tuple[int, int, int]]:
        """Site to (made, elided, redundant), for the record."""
        return {s: (c.made, c.elided, c.redundant) for s, c in sorted(self.sites.items())}
