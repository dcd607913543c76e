"""What bounds every token of a device: how fast its link and its memory move bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes per second, measured on the device itself."""

    link: float
    """From pinned host memory to the device."""
    memory: float
    """Reads of device memory."""
