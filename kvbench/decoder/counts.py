"""What engines counted, as differences over a part of a run: calls, bytes moved, waits by site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvbench.decoder.engine import Engine

WAIT_CALLS = ("queue_synchronize", "event_synchronize")
"""The API calls that wait on the host."""


@dataclass(slots=True)
class Counts:
    """Totals over the stages of engines; an engine's name prefixes its waits and bytes."""

    calls: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    sites: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Site to (made, elided, made though redundant)."""

    def since(self, before: Counts) -> Counts:
        """What was counted after ``before``, zeros left out."""
        none = (0, 0, 0)
        sites = {
            site: tuple(a - b for a, b in zip(now, before.sites.get(site, none), strict=True))
            for site, now in self.sites.items()
        }
        return Counts(
            Counter({k: v for k, v in sorted((self.calls - before.calls).items()) if v}),
            Counter({k: v for k, v in sorted((self.moved - before.moved).items()) if v}),
            {s: (c[0], c[1], c[2]) for s, c in sorted(sites.items()) if any(c)},
        )


def counts(engines: Mapping[str, Engine]) -> Counts:
    """The present totals; ``engines`` maps a prefix ("" or "draft.") to an engine."""
    total = Counts()
    for prefix, engine in engines.items():
        for stage in engine.stages:
            total.calls.update(stage.device.calls)
            for kind, nbytes in stage.pipeline.telemetry.bytes.items():
                total.moved[f"{prefix}{kind}"] += nbytes
            for site, count in stage.device.context.waits().items():
                held = total.sites.get(f"{prefix}{site}", (0, 0, 0))
                made, elided, redundant = (a + b for a, b in zip(held, count, strict=True))
                total.sites[f"{prefix}{site}"] = (made, elided, redundant)
    return total
