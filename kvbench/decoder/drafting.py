"""From settings to a speculation: the draft's engine beside the target's, and their history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from kvbench.decoder.draft import MAX_DRAFT, PROMPT, Draft, PromptLookup, draft_model
from kvbench.decoder.engine import Engine
from kvbench.decoder.history import insert
from kvbench.decoder.model import Model
from kvbench.decoder.model_draft import ModelDraft
from kvbench.decoder.settings import DecoderSettings
from kvbench.decoder.snapshot import Snapshot
from kvbench.decoder.speculation import Speculation, Tally

DRAFT = "draft"
"""Name of the draft's devices, and prefix of its counts."""

History = Callable[[Model, Sequence[int], DecoderSettings], Snapshot]


@contextmanager
def speculating(
    target: Engine, prompts: Sequence[Sequence[int]], history: History | None
) -> Iterator[tuple[Speculation, Engine | None]]:
    """A speculation on ``target`` as its settings ask for, and the draft's engine if it has one.

    ``prompts``: texts to begin with, whose last token is still to be fed; ``history`` makes their
    prefill, None lets the draft's engine do it.
    """
    settings = target.settings
    with ExitStack() as stack:
        engine: Engine | None = None
        draft: Draft = PromptLookup()
        if settings.draft != PROMPT:
            engine = stack.enter_context(_engine(target))
            _fill(engine, prompts, history)
            draft = ModelDraft(engine, target)
        stack.callback(draft.close)
        yield Speculation(target, draft, settings.draft_length), engine


def _engine(target: Engine) -> Engine:
    """The draft's own context: the target's settings, one device, and room to draft too far."""
    settings = target.settings
    model = draft_model(target.model, settings.draft)
    own = msgspec.structs.replace(
        settings,
        devices=1,
        draft="none",
        device_layers=min(settings.device_layers, model.config.n_layers),
        lag=max(settings.lag, settings.draft_length + 1),
    )
    capacity = min(target.capacity + MAX_DRAFT, model.config.context)
    return Engine(
        model,
        own,
        target.sequences,
        capacity,
        hooks=target.hooks,
        log=target.log,
        picker=target.picker,
        device_bytes=target.device_bytes,
        name=DRAFT,
        beside=target,
    )


def _fill(engine: Engine, prompts: Sequence[Sequence[int]], history: History | None) -> None:
    for sequence, prompt in enumerate(prompts):
        if len(prompt) < 2:
            continue
        if history is None:
            engine.prefill(sequence, prompt[:-1])
            continue
        kept = history(engine.model, prompt[:-1], engine.settings)
        if kept.positions:
            insert(engine, sequence, kept)
    engine.drain("start")


def tally_counters(tally: Tally, draft: Draft) -> dict[str, int]:
    """A tally as counters of a record."""
    return {
        "drafted": tally.drafted,
        "accepted": tally.accepted,
        "generated": tally.generated,
        "draft_rounds": tally.rounds,
        "draft_steps": draft.steps,
        "draft_catch_ups": draft.catch_ups,
    }


def tally_telemetry(tally: Tally) -> dict[str, Any]:
    """Acceptance by position of the guess, for people."""
    return {"acceptance_by_position": [round(share, 4) for share in tally.by_position()]}
