"""A sequence's rows and states, out of an engine and into one: snapshots, state save and load."""

from __future__ import annotations

import numpy as np

from kvbench.decoder.engine import Engine
from kvbench.decoder.snapshot import Snapshot, digest_of
from kvbench.decoder.stage import AttentionLayer, RecurrentLayer, Stage
from kvbench.device.kvtypes import Bytes
from kvbench.device.memory import Span
from kvbench.errors import UsageError


def extract(engine: Engine, sequence: int, *, prefill_s: float = 0.0) -> Snapshot:
    """Copy a sequence's history out; waits for everything in flight first (H17)."""
    engine.drain("save")
    cells, pitch = engine.cache.cells[sequence], engine.cache.pitch
    rows, states = [], []
    for stage in engine.stages:
        for item in stage.layers:
            if isinstance(item, RecurrentLayer):
                states.append(_read(stage, _state_span(engine, item, sequence)))
            else:
                rows.append(
                    np.stack(
                        [
                            _read(stage, span).reshape(-1, pitch)[cells]
                            for span in _streams(engine, item, sequence)
                        ]
                    )
                )
    all_rows = np.stack(rows) if rows else np.zeros((0, 2, 0, 0), np.uint8)
    all_states = np.stack(states) if states else np.zeros((0, 0), np.uint8)
    return Snapshot(len(cells), all_rows, all_states, prefill_s, digest_of(all_rows, all_states))


def insert(engine: Engine, sequence: int, snapshot: Snapshot) -> None:
    """Make a sequence's history the snapshot's; the sequence must be empty."""
    if engine.cache.length(sequence):
        raise UsageError(f"sequence {sequence} is not empty; reset it before loading a state")
    engine.drain("load")
    engine.cache.append([(sequence, snapshot.positions)])
    engine.cache.prefix.rewrite()
    row, state = 0, 0
    for stage in engine.stages:
        for item in stage.layers:
            if isinstance(item, RecurrentLayer):
                _write(stage, _state_span(engine, item, sequence), snapshot.states[state])
                state += 1
                continue
            for part in (0, 1):
                place_rows(engine, stage, item, sequence, part, snapshot.rows[row, part])
            row += 1


def place_rows(
    engine: Engine, stage: Stage, item: AttentionLayer, sequence: int, part: int, rows: Bytes
) -> None:
    """Write all of a sequence's rows of one layer; ``part``: 0 for K, 1 for V.

    ``rows``: [positions, pitch] uint8. Nothing may be in flight.
    """
    span = _streams(engine, item, sequence)[part]
    held = _read(stage, span).reshape(-1, engine.cache.pitch)
    held[engine.cache.cells[sequence]] = rows
    _write(stage, span, held.ravel())


def _streams(engine: Engine, item: AttentionLayer, sequence: int) -> list[Span]:
    """K's and V's bytes of the sequence's stream, up to its furthest cell."""
    storage, stream = item.storage, 0 if engine.cache.unified else sequence
    used = max(engine.cache.cells[sequence], default=-1) + 1
    return [
        Span(storage.buffer, storage.row(part, stream, 0), used * storage.pitch) for part in (0, 1)
    ]


def _state_span(engine: Engine, item: RecurrentLayer, sequence: int) -> Span:
    home = item.home or item.state
    width = home.nbytes // engine.sequences
    return Span(home.buffer, home.offset + sequence * width, width)


def _read(stage: Stage, span: Span) -> Bytes:
    device = stage.device
    if span.buffer.space == "host":
        copied: Bytes = device.host(
            "save", lambda: span.buffer.raw[span.offset : span.end].copy(), reads=(span,)
        )
        return copied
    staging = device.alloc("staging", max(span.nbytes, 1), "host")
    device.copy(stage.compute, staging.span(0, span.nbytes), span, site="save")
    device.synchronize(stage.compute, "save")
    read = staging.span(0, span.nbytes)
    out: Bytes = device.host("save", lambda: staging.raw[: span.nbytes].copy(), reads=(read,))
    device.free(staging)
    return out


def _write(stage: Stage, span: Span, content: Bytes) -> None:
    device = stage.device
    if span.buffer.space == "host":
        target = span.buffer.raw[span.offset : span.end]
        device.host("load", lambda: np.copyto(target, content), writes=(span,))
        return
    staging = device.alloc("staging", max(span.nbytes, 1), "host")
    part = staging.span(0, span.nbytes)
    device.host("load", lambda: np.copyto(staging.raw[: span.nbytes], content), writes=(part,))
    device.copy(stage.compute, span, part, site="load")
    device.synchronize(stage.compute, "load")
    device.free(staging)
