"""Injected delays: they change no byte of a right decoder and make a missing wait show."""

from __future__ import annotations

from kvbench.decoder.settings import DecoderSettings
from kvbench.device.ops import Op
from kvbench.transport.hooks import TransportHooks

SITES = {
    "none": (),
    "slow_transfer": ("early", "late"),
    "slow_compute": ("attend",),
    "slow_store": ("store",),
    "jitter": ("early", "late", "attend", "store"),
}
EVERY = 7
"""One in this many of a mode's operations is late, so that a run still ends soon."""


class DelayHooks(TransportHooks):
    """Delays operations of the sites that the mode names."""

    def __init__(self) -> None:
        self._sites: tuple[str, ...] = ()
        self._seconds = 0.0
        self._turn = 0

    def configure(self, settings: DecoderSettings) -> None:
        """Take mode and length from the settings."""
        self._sites = SITES[settings.delays]
        self._seconds = settings.delay_ms / 1e3

    def history_of(self, sequence: int) -> int:
        """Whose prompt's history ``sequence`` starts from: its own."""
        return sequence

    def delay(self, op: Op, queue: str) -> float:
        """Seconds before ``op``."""
        if op.site not in self._sites:
            return 0.0
        self._turn += 1
        return self._seconds if self._turn % EVERY == 0 else 0.0
