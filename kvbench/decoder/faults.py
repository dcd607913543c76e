"""Planted faults and injected delays: what a gate must catch, and what makes it likely to show."""

from __future__ import annotations

from kvbench.decoder.settings import DecoderSettings
from kvbench.device.ops import Op
from kvbench.errors import SettingError
from kvbench.transport.hooks import TransportHooks


class DelayHooks(TransportHooks):
    """Delays by mode: the transfer queue, the compute queue, the stores, or a bit of each."""

    def __init__(self, mode: str, seconds: float) -> None:
        self.mode, self.seconds = mode, seconds
        self._turn = 0

    def delay(self, op: Op, queue: str) -> float:
        """Every 7th fitting operation is late; a rate, so that a run still ends soon."""
        site = {
            "slow_transfer": ("early", "late"),
            "slow_compute": ("attend",),
            "slow_store": ("store",),
            "jitter": ("early", "late", "attend", "store"),
        }
        if op.site not in site.get(self.mode, ()):
            return 0.0
        self._turn += 1
        return self.seconds if self._turn % 7 == 0 else 0.0


class DropWaits(DelayHooks):
    """Leaves out every wait of one site."""

    def __init__(self, site: str, mode: str, seconds: float) -> None:
        super().__init__(mode, seconds)
        self.site = site

    def keep_wait(self, queue: str, site: str) -> bool:
        """All but the dropped site's."""
        return site != self.site


WAITS = {
    "no_ready_wait": "ready",
    "no_release_wait": "release",
    "no_boundary_wait": "boundary",
    "no_tail_wait": "tail",
    "no_store_wait": "store",
}


def hooks_for(settings: DecoderSettings) -> TransportHooks:
    """The hooks that ``faults`` and ``delays`` ask for; neutral without them."""
    seconds = settings.delay_ms / 1e3
    if not settings.faults:
        return DelayHooks(settings.delays, seconds)
    if len(settings.faults) > 1:
        raise SettingError("faults", settings.faults, "one at a time")
    (name,) = settings.faults
    if name not in WAITS:
        raise SettingError("faults", name, "one of " + ", ".join(sorted(WAITS)))
    return DropWaits(WAITS[name], settings.delays, seconds)
