"""Row state on its way to the device, through staging that is never rewritten in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kvbench.decoder.cache import KVCache, Row
from kvbench.decoder.stage import Stage
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


class Upload:
    """Tokens, positions and places of a batch's rows; cell lists too for a unified cache."""

    def __init__(self, stage: Stage, cache: KVCache, depth: int) -> None:
        self.stage, self.cache, self.device = stage, cache, stage.device
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

    def rows(self, rows: Sequence[Row], tokens: Sequence[int] | None, ends: Sequence[int]) -> None:
        """Queue the upload of ``rows``; without ``tokens`` those on the device are kept.

        ``ends``: the last row of each group, whose cell list a unified cache needs.
        """
        at = self._turn = (self._turn + 1) % len(self._events)
        if self._events[at].latest is not None:
            self.device.synchronize(self._events[at], "staging")
        staging = self._state[at]
        used = staging.span(0, len(rows) * ROW_BYTES)

        def fill() -> None:
            table = staging.raw.view(np.int32).reshape(MAX_ROWS, STATE_COLUMNS)[: len(rows)]
            if tokens is not None:
                table[:, TOKEN] = tokens
            table[:, POSITION] = [r.position for r in rows]
            table[:, CELL] = [r.where.cell for r in rows]
            table[:, STREAM] = [r.where.stream for r in rows]
            table[:, LANE] = [r.where.lane for r in rows]

        self.device.host("stage rows", fill, writes=(used,), site="upload")
        first = TOKEN if tokens is not None else POSITION
        length, n = ROW_BYTES - first * 4, len(rows)
        self.device.copy(
            self.stage.compute,
            Span(self.stage.kernels.state, first * 4, length, n, ROW_BYTES),
            Span(staging, first * 4, length, n, ROW_BYTES),
            site="upload",
        )
        if self._cells:
            self._upload_cells(rows, ends, self._cells[at])
        self.device.record(self.stage.compute, self._events[at])

    def _upload_cells(self, rows: Sequence[Row], ends: Sequence[int], staging: Buffer) -> None:
        """The cells that each group's last row attends to, in order of position."""
        target, width = self.stage.kernels.with_cells(), self.cache.rows * 4
        for i in ends:
            own = self.cache.cells[rows[i].sequence][: rows[i].position + 1]
            span = Span(staging, i * width, len(own) * 4)
            self.device.host("stage cells", _filler(span, own), writes=(span,), site="upload")
            self.device.copy(
                self.stage.compute, Span(target, span.offset, span.length), span, site="upload"
            )

    def close(self) -> None:
        """Free the staging; the caller has waited for the queue."""
        for buffer in (*self._state, *self._cells):
            self.device.free(buffer)
        for event in self._events:
            self.device.drop_event(event)
        self._state, self._cells, self._events = [], [], []


def _filler(span: Span, cells: Sequence[int]) -> Callable[[], None]:
    def fill() -> None:
        span.buffer.raw[span.offset : span.end].view(np.int32)[:] = cells

    return fill
