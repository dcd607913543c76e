"""Waits per token and per draft step as they were really made, on a small synthetic target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from kvbench.decoder.counts import WAIT_CALLS
from kvbench.decoder.model import open_model
from kvbench.decoder.session import DecodeTask, run_task
from kvbench.decoder.settings import DecoderSettings
from kvbench.device.context import WaitMode
from kvbench.records import Result

MODEL = "synthetic:tiny,layers=4,shallow=2,agree=60"
DRAFT = "layers:2"
TOKENS = 256


@dataclass(frozen=True, slots=True)
class Measured:
    """One run's waits. ``per_draft_step`` is None where nothing was drafted."""

    mode: WaitMode
    draft: str
    per_token: float
    """Real waits of all contexts over generated tokens."""
    per_target_graph: float
    per_draft_step: float | None
    redundant: float
    """Per token: made, and needed by nobody."""
    other_calls: dict[str, int]
    """API calls but the waits, by name."""
    hashes: dict[str, str]
    accepted: str = ""
    """Guesses accepted of those verified."""


def measure() -> list[Measured]:
    """All three arms, plain and with the shallow draft of 7 tokens, one sequence."""
    model = open_model(MODEL)
    task = DecodeTask([[(7 * i) % 50 for i in range(64)]], TOKENS, snapshots=False)
    found = []
    for draft in ("none", DRAFT):
        for mode in get_args(WaitMode):
            settings = DecoderSettings(waits=mode, draft=draft, resident=True, audit=True)
            found.append(_measured(mode, draft, run_task(model, settings, task).result))
    return found


def _measured(mode: WaitMode, draft: str, result: Result) -> Measured:
    c = result.counters
    made = {site: count[0] for site, count in result.waits.items()}
    own = sum(n for site, n in made.items() if not site.startswith("draft."))
    drafted = sum(made.values()) - own
    steps = c.get("draft_steps", 0) + c.get("draft_catch_ups", 0)
    return Measured(
        mode,
        draft,
        sum(made.values()) / result.tokens,
        own / c.get("draft_rounds", result.tokens),
        drafted / steps if steps else None,
        sum(count[2] for count in result.waits.values()) / result.tokens,
        {name: n for name, n in c.items() if name not in WAIT_CALLS},
        result.hashes,
        f"{c['accepted']}/{c['drafted']}" if "drafted" in c else "",
    )
