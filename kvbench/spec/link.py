"""The slowed link of the cpu device, as it is used: resolved from the suite's LinkSpec."""

from __future__ import annotations

from typing import Literal

import msgspec


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The slowed link of the cpu device, equal in every run of a cell."""

    bytes_per_s: float
    source: Literal["stated", "calibrated"]
    ratio: float | None = None
    """copy : compute that the calibration aimed at."""

    @property
    def label(self) -> str:
        """For the first line of every report."""
        how = self.source if self.ratio is None else f"{self.source}, copy:compute {self.ratio:g}"
        return f"LINK SLOWED to {self.bytes_per_s / 1e9:.3f} GB/s ({how})"
