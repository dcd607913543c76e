"""A history of seeded rows in place of a prompt's prefill: any length, for the price of a copy.

Contexts of 64k and more would take a prefill of minutes before one token is timed. What a step
costs depends on how many rows there are, not on what they say; so the rows are drawn. Every arm
of one KV type starts from the same bytes, whatever its depth and device.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

import msgspec
import numpy as np

from kvbench.decoder.engine import Engine
from kvbench.decoder.history import place_rows
from kvbench.decoder.stage import AttentionLayer
from kvbench.device.kvtypes import Bytes
from kvbench.device.kvtypes import kv_type as codec_of
from kvbench.errors import UsageError

BLOCK = 1024
"""Rows that are drawn; the history repeats them, turned by layer, K or V, block and sequence."""
FORMAT = 1


class SeededHistory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``tokens`` rows of each attention layer's K and V; recurrent states stay as new."""

    tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    seed: Annotated[int, msgspec.Meta(ge=0)] = 1

    def label(self) -> str:
        """For a record: this was no prompt."""
        return f"seeded: {self.tokens} rows, seed {self.seed}"


def parse(value: Any) -> SeededHistory:
    """From a task's option ``history``. Raises UsageError naming the key."""
    try:
        return msgspec.convert(value, SeededHistory)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"option history: {error}; allowed are tokens (1 or more) and seed (0 or more)"
        ) from None


def draw(engine: Engine, history: SeededHistory) -> Bytes:
    """[1024, pitch] uint8: standard normal values in the engine's KV type."""
    config = engine.model.config
    codec = codec_of(
        engine.settings.kv_type, n_kv_heads=config.n_kv_heads, head_dim=config.head_dim
    )
    rng = np.random.default_rng(history.seed)
    rows = np.zeros((BLOCK, codec.pitch), np.uint8)
    codec.encode(rng.standard_normal((BLOCK, codec.values), np.float32), rows)
    return rows


def fill(engine: Engine, history: SeededHistory) -> str:
    """Give every sequence of a new engine the history; returns the hash of what it was made of."""
    drawn = draw(engine, history)
    engine.drain("load")
    engine.cache.append([(sequence, history.tokens) for sequence in range(engine.sequences)])
    engine.cache.prefix.rewrite()
    for stage in engine.stages:
        for item in stage.layers:
            if isinstance(item, AttentionLayer):
                for sequence in range(engine.sequences):
                    for part in (0, 1):
                        rows = _rows(drawn, history.tokens, item.layer, part, sequence)
                        place_rows(engine, stage, item, sequence, part, rows)
    facts = f"{FORMAT} {history.tokens} {engine.sequences} {engine.model.config.n_layers} "
    return hashlib.blake2b(facts.encode() + drawn.tobytes(), digest_size=16).hexdigest()


def _rows(drawn: Bytes, tokens: int, layer: int, part: int, sequence: int) -> Bytes:
    """[tokens, pitch]: block b is the drawn rows from its own turn on."""
    blocks = np.arange(-(-tokens // BLOCK))[:, None]
    turns = 37 * layer + 11 * part + 101 * blocks + 53 * sequence
    at = (turns + np.arange(BLOCK)[None, :]) % BLOCK
    rows: Bytes = drawn[at.reshape(-1)[:tokens]]
    return rows
