"""Row state on its way to the device, through staging that is never rewritten in flight.

``quiet`` turns through as many stagings as tokens may be in flight, and guards each by an event.
A stock engine has one, and waits after each input that passes through it (decoder.waits).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from kvbench.decoder.cache import KVCache, Row
from kvbench.decoder.stage import Stage
from kvbench.decoder.waits import WaitPattern
from kvbench.device.kernels import (
    CELL,
    LANE,
    MAX_ROWS,
    POSITION,
    STATE_COLUMNS,
    STREAM,
    TOKEN,
)
from kvbench.device.memory import Buffer, Span

ROW_BYTES = STATE_COLUMNS * 4
INPUTS = (
    ("upload.tokens", TOKEN, POSITION),
    ("upload.positions", POSITION, CELL),
    ("upload.places", CELL, LANE + 1),
)
"""A stock engine's inputs: site, and the columns of ``state`` from and up to."""

Tokens = Sequence[int | None]


class Upload:
    """Tokens, positions and places of a batch's rows; cell lists too for a unified cache."""

    def __init__(self, stage: Stage, cache: KVCache, waits: WaitPattern, depth: int) -> None:
        self.stage, self.cache, self.device = stage, cache, stage.device
        self.waits = waits
        if waits.host_samples:
            depth = 1
        self._state = [
            self.device.alloc(f"stage_state{i}", MAX_ROWS * ROW_BYTES, "host") for i in range(depth)
        ]
        self._cells: list[Buffer] = []
        if cache.unified:
            self._cells = [
                self.device.alloc(f"stage_cells{i}", MAX_ROWS * cache.rows * 4, "host")
                for i in range(depth)
            ]
        self._events = [self.device.event(f"staged{i}") for i in range(depth)]
        self._turn = 0

    def rows(self, rows: Sequence[Row], tokens: Tokens | None, ends: Sequence[int]) -> None:
        """Queue the upload of ``rows``. Where ``tokens`` is or has None, the device's are kept.

        ``ends``: the last row of each group, whose cell list a unified cache needs.
        """
        at = self._turn = (self._turn + 1) % len(self._events)
        if self.waits.host_samples:
            self._inputs(rows, tokens, self._state[at])
        else:
            self._at_once(rows, tokens, at)
        if self._cells:
            self._upload_cells(rows, ends, self._cells[at])
        if not self.waits.host_samples:
            self.device.record(self.stage.compute, self._events[at])

    def _inputs(self, rows: Sequence[Row], tokens: Tokens | None, staging: Buffer) -> None:
        table = _table(rows, tokens)
        for site, first, stop in INPUTS:
            if first != TOKEN or tokens is not None:
                self._copy(table[:, first:stop], staging, 0, 0, first)
                self.waits.at_stage(self.stage, site)

    def _at_once(self, rows: Sequence[Row], tokens: Tokens | None, at: int) -> None:
        if self._events[at].latest is not None:
            self.device.synchronize(self._events[at], "staging")
        table = _table(rows, tokens)
        whole = tokens is not None and None not in tokens
        first = TOKEN if whole else POSITION
        used = self._copy(table[:, first : LANE + 1], self._state[at], 0, 0, first)
        if tokens is not None and not whole:
            for start, stop in _known(tokens):
                part = table[start:stop, TOKEN:POSITION]
                used = self._copy(part, self._state[at], used, start, TOKEN)

    def _copy(self, part: np.ndarray, staging: Buffer, at: int, row: int, column: int) -> int:
        """Stage ``part`` [rows, columns] at byte ``at`` and queue its copy; where it ends."""
        n, width = part.shape
        span = staging.span(at, n * width * 4)
        self.device.host("stage rows", _filler(span, part.ravel()), writes=(span,), site="upload")
        self.device.copy(
            self.stage.compute,
            Span(self.stage.kernels.state, row * ROW_BYTES + column * 4, width * 4, n, ROW_BYTES),
            Span(staging, at, width * 4, n, width * 4),
            site="upload",
        )
        return span.end

    def _upload_cells(self, rows: Sequence[Row], ends: Sequence[int], staging: Buffer) -> None:
        """The cells that each group's last row attends to, in order of position."""
        target, width = self.stage.kernels.with_cells(), self.cache.rows * 4
        for i in ends:
            own = self.cache.cells[rows[i].sequence][: rows[i].position + 1]
            at = 0 if self.waits.host_samples else i * width
            span = Span(staging, at, len(own) * 4)
            self.device.host("stage cells", _filler(span, own), writes=(span,), site="upload")
            self.device.copy(
                self.stage.compute, Span(target, i * width, span.length), span, site="upload"
            )
            self.waits.at_stage(self.stage, "upload.cells")

    def close(self) -> None:
        """Free the staging; the caller has waited for the queue."""
        for buffer in (*self._state, *self._cells):
            self.device.free(buffer)
        for event in self._events:
            self.device.drop_event(event)
        self._state, self._cells, self._events = [], [], []


def _table(rows: Sequence[Row], tokens: Tokens | None) -> np.ndarray:
    """[rows, columns] int32 as ``state`` has them; 0 where a token is the device's."""
    table = np.zeros((len(rows), LANE + 1), np.int32)
    if tokens is not None:
        table[:, TOKEN] = [t or 0 for t in tokens]
    table[:, POSITION] = [r.position for r in rows]
    table[:, CELL] = [r.where.cell for r in rows]
    table[:, STREAM] = [r.where.stream for r in rows]
    table[:, LANE] = [r.where.lane for r in rows]
    return table


def _known(tokens: Tokens) -> Iterator[tuple[int, int]]:
    """Runs of rows whose token the host knows."""
    start = None
    for i, token in enumerate([*tokens, None]):
        if token is not None and start is None:
            start = i
        elif token is None and start is not None:
            yield start, i
            start = None


def _filler(span: Span, values: Sequence[int] | np.ndarray) -> Callable[[], None]:
    def fill() -> None:
        span.buffer.raw[span.offset : span.end].view(np.int32)[:] = values

    return fill
