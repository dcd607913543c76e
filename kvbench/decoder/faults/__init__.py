"""Planted faults and injected delays: what a gate must catch, and what makes it likely to show."""

from __future__ import annotations

from kvbench.decoder.faults.catalogue import BY_NAME, FAULTS, KINDS, Fault
from kvbench.decoder.faults.delays import DelayHooks
from kvbench.decoder.settings import DecoderSettings
from kvbench.errors import SettingError

__all__ = ["FAULTS", "KINDS", "DelayHooks", "Fault", "find", "hooks_for"]


def find(name: str) -> Fault:
    """The fault called ``name``; SettingError lists what there is."""
    if name not in BY_NAME:
        raise SettingError("faults", name, "one of " + ", ".join(sorted(BY_NAME)))
    return BY_NAME[name]


def hooks_for(settings: DecoderSettings) -> DelayHooks:
    """The hooks that ``faults`` and ``delays`` ask for; neutral without them."""
    if len(settings.faults) > 1:
        raise SettingError("faults", settings.faults, "one at a time")
    hooks = find(settings.faults[0]).hooks() if settings.faults else DelayHooks()
    hooks.configure(settings)
    return hooks
