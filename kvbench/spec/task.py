"""What one run of one arm is asked to do: the resolved, pure-data half of the arm protocol."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvbench.spec.suite import Model, Workload


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


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One run. ``link`` None: the link is not slowed."""

    model: Model
    workload: Workload
    link: Link | None = None
    purpose: Literal["measure", "gate", "calibrate"] = "measure"
    warmup: int = 1
    """Warm-up passes inside the run whose tokens are discarded (M2)."""
    audit: bool = False
    """Fold every byte of every window read into the ``audit`` hash."""
    forced: tuple[tuple[int, ...], ...] = ()
    """Teacher forcing: per sequence, the token ids to feed instead of the arm's own."""
    options: dict[str, Any] = {}
    """Engine-neutral extras of gates (delays, detail per position); unknown ones are refused."""
