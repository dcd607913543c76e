"""Faults of ordering: a wait, a record or a synchronize that is left out."""

from __future__ import annotations

from kvbench.decoder.faults.delays import DelayHooks


class NoWait(DelayHooks):
    """No queue waits at ``site``; at one event only, if ``event`` is given (its name's end)."""

    def __init__(self, site: str, event: str = "") -> None:
        super().__init__()
        self.site, self.event = site, event

    def keep_wait(self, queue: str, site: str, event: str) -> bool:
        """All but the dropped one."""
        return site != self.site or not event.endswith(self.event)


class NoWaits(DelayHooks):
    """None of several sites waits."""

    def __init__(self, *sites: str) -> None:
        super().__init__()
        self.sites = sites

    def keep_wait(self, queue: str, site: str, event: str) -> bool:
        """All but the dropped ones."""
        return site not in self.sites


class NoRecord(DelayHooks):
    """Events whose name begins with ``prefix`` are not recorded (again): waits bind what was."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.names = prefix

    def keep_record(self, queue: str, event: str) -> bool:
        """All but the dropped ones."""
        return not event.split("/")[-1].startswith(self.names)


class NoSync(DelayHooks):
    """The host does not wait at ``site``."""

    def __init__(self, *sites: str) -> None:
        super().__init__()
        self.sites = sites

    def keep_sync(self, queue: str, site: str) -> bool:
        """All but the dropped ones."""
        return site not in self.sites


class NoDrain(DelayHooks):
    """The host touches the cache for ``reason`` without waiting, and keeps a carry in flight."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def drains(self, reason: str) -> bool:
        """All but the dropped one."""
        return reason != self.reason

    def carry_valid(self, valid: bool) -> bool:
        """What was carried is used, whatever happened since."""
        return True


class AnyCarry(DelayHooks):
    """A carried delivery is used without asking whether it fits (H11)."""

    def carry_valid(self, valid: bool) -> bool:
        """Always."""
        return True


class PhantomCarry(DelayHooks):
    """The first graph believes that its first deliveries were carried (H19)."""

    def carried(self, made: int, depth: int) -> int:
        """As many as a carry would have made."""
        return depth
