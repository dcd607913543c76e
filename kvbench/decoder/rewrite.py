"""History rewritten: rolled back, emptied, overwritten, shifted (T17, T20).

Whatever touches memory that work in flight may read or write drains first (H3, H13); rolling back
and emptying a sequence touch no rows: their next store is ordered behind every reader by the
transport, which drops a look-ahead that no longer fits (H11, H12).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvbench.decoder.cache import KVCache
from kvbench.decoder.stage import AttentionLayer, RecurrentLayer, Stage
from kvbench.device.memory import Span
from kvbench.device.shift import shift_rows, shift_spans
from kvbench.errors import UsageError
from kvbench.transport.window import resident_view


class History:
    """The history that ``cache`` describes and ``stages`` hold."""

    def __init__(self, cache: KVCache, stages: Sequence[Stage]) -> None:
        self.cache, self.stages = cache, stages

    def drain(self, reason: str) -> None:
        """Wait for all readers and writers of the cache; a look-ahead in flight is dropped."""
        for stage in self.stages:
            stage.pipeline.drain(reason)

    def truncate(self, sequence: int, length: int) -> None:
        """Roll a sequence back to ``length`` positions."""
        self._refuse_recurrent("roll back")
        self.cache.truncate(sequence, length)

    def reset(self, sequence: int) -> None:
        """Empty one sequence while others go on."""
        self.cache.reset(sequence)
        for stage in self.stages:
            for item in stage.layers:
                if isinstance(item, RecurrentLayer):
                    self._zero_state(stage, item, sequence)

    def clear(self) -> None:
        """Empty all sequences and overwrite the memory (T17)."""
        self.drain("clear")
        self.cache.clear()
        for stage in self.stages:
            for item in stage.layers:
                if isinstance(item, AttentionLayer):
                    _fill(stage, item.storage.buffer.span())
        for sequence in range(self.cache.sequences):
            self.reset(sequence)

    def shift(self, sequence: int, keep: int, discard: int) -> None:
        """Drop positions [keep, keep + discard) of a sequence and close up (T20)."""
        self._refuse_recurrent("shift")
        self.drain("shift")
        moves, delta = self.cache.shift(sequence, keep, discard)
        if not moves:
            return
        for stage in self.stages:
            for item in stage.layers:
                assert isinstance(item, AttentionLayer)
                view = resident_view(item.storage)
                kernels, buffer = stage.kernels, item.storage.buffer
                if buffer.space == "device":
                    stage.device.submit(stage.compute, kernels.shift(view, moves, delta))
                    continue
                rewrite = partial(
                    shift_rows, buffer.raw, view, kernels.codec, kernels.shapes, moves, delta
                )
                reads, writes = shift_spans(view, moves)
                stage.device.host("shift", rewrite, reads=reads, writes=writes, site="shift")

    def _refuse_recurrent(self, what: str) -> None:
        if any(isinstance(item, RecurrentLayer) for s in self.stages for item in s.layers):
            raise UsageError(f"cannot {what}: a recurrent state cannot go back in time")

    def _zero_state(self, stage: Stage, item: RecurrentLayer, sequence: int) -> None:
        width = item.state.nbytes // self.cache.sequences
        stage.device.synchronize(stage.compute, "clear")
        for home in (item.state, item.home):
            if home is not None:
                _fill(stage, Span(home.buffer, home.offset + sequence * width, width))


def _fill(stage: Stage, span: Span) -> None:
    """Zero host or device memory; the caller has drained it."""
    if span.buffer.space == "host":
        target = span.buffer.raw[span.offset : span.end]
        stage.device.host("clear", lambda: target.fill(0), writes=(span,), site="clear")
        return
    zeros = stage.device.alloc("zeros", span.nbytes, "host")
    stage.device.copy(stage.compute, span, zeros.span(), site="clear")
    stage.device.synchronize(stage.compute, "clear")
    stage.device.free(zeros)
