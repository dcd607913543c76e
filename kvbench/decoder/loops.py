"""The loops over graphs: a prompt in tiles, greedy steps, several tokens of a sequence at once.

Each turn is the same: rows from the cache, inputs uploaded, one graph, results read back. With
waits = quiet nothing waits on the host: arg-max feeds the next token on the device and the host
reads ``lag`` tokens behind. The other patterns sample on the host, and wait where a stock engine
does (waits.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kvbench.decoder.cache import KVCache, Row
from kvbench.decoder.forward import Forward
from kvbench.decoder.readback import Readback, StepOutput
from kvbench.decoder.settings import DecoderSettings
from kvbench.decoder.upload import Tokens, Upload
from kvbench.decoder.waits import AFTER, BEFORE, WaitPattern
from kvbench.device.kernels import MAX_DECODE_ROWS, TILE, Batch, Group
from kvbench.device.oplog import OpLog
from kvbench.device.ranges import ranged
from kvbench.errors import UsageError
from kvbench.records.capture import TOKEN
from kvbench.transport.levels import ISSUED
from kvbench.transport.pipeline import Next

Sink = Callable[[StepOutput], None]


class Loops:
    """What an engine can do with its parts; Engine puts them there."""

    settings: DecoderSettings
    cache: KVCache
    waits: WaitPattern
    log: OpLog | None
    _forward: Forward
    _uploads: list[Upload]
    _readback: Readback
    _batches: dict[Hashable, Batch]

    def prefill(self, sequence: int, tokens: Sequence[int]) -> None:
        """Run ``tokens`` of one sequence through the model in tiles; no logits."""
        for start in range(0, len(tokens), TILE):
            with ranged("prefill"):
                part = tokens[start : start + TILE]
                self.waits.at(BEFORE)
                rows = self.cache.append([(sequence, len(part))])
                batch = self._batch((Group(0, len(part), True),), ())
                self._upload(batch, rows, part)
                self._step(batch, rows, None, advance=False)
                self.waits.at(AFTER)

    def generate(
        self,
        feed: Mapping[int, int],
        n: int,
        sink: Sink,
        *,
        teacher: dict[int, Sequence[int]] | None = None,
        stop: Callable[[], bool] | None = None,
        more: bool = False,
    ) -> int:
        """``n`` steps of every sequence in ``feed`` (sequence to its next input token).

        ``sink`` sees each step's outputs, rows in ascending order of sequence. With ``teacher``
        (the tokens to feed after the first) the model is forced along them. Once ``stop`` is true
        after a sink no more steps are issued; as many as were are returned: rows beyond the last
        one that the sink saw are in the cache and may still be in flight (H10). ``more``: the
        caller may go on, so the look-ahead reaches past the last step.
        """
        order = sorted(feed)
        groups = tuple(Group(i, 1, False) for i in range(len(order)))
        batch = self._batch(groups, tuple(range(len(order))))
        lag = self._lag
        for t in range(n):
            if self.log is not None:
                self.log.mark(TOKEN, step=t)
            with ranged(TOKEN):
                self.waits.at(BEFORE)
                rows = self.cache.append([(s, 1) for s in order])
                self._feed(batch, rows, t, feed, teacher)
                following = self.cache.following(rows) if more or t + 1 < n else None
                self._step(batch, rows, Next(*following) if following else None, advance=True)
                if self.log is not None:
                    self.log.mark(ISSUED)
                self._readback.push(t, batch.outputs)
                if t >= lag:
                    feed = self._take(t - lag, order, sink)
                    if stop is not None and stop():
                        return t + 1
        for t in range(max(0, n - lag), n):
            self._take(t, order, sink)
            if stop is not None and stop():
                break
        return n

    def decode(
        self,
        feed: Mapping[int, Sequence[int | None]],
        *,
        assumed: Mapping[int, int] | None = None,
        ahead: Mapping[int, int] | None = None,
        place: Callable[[Sequence[Row]], None] | None = None,
        read: int | None = None,
    ) -> list[Row]:
        """One graph in which a sequence takes several tokens, each in a row of its own.

        None stands for a token that ``place`` brings to its row. ``assumed``: rows that the graph
        before took to be stable when it looked ahead. ``ahead``: tokens that each sequence takes
        in the next graph, if any number of this graph's tokens but the first may be rolled back
        before (H9). ``read``: the index under which all rows' outputs are read back.
        """
        order = sorted(feed)
        if sum(len(feed[s]) for s in order) > MAX_DECODE_ROWS:
            raise UsageError(f"a decode batch takes up to {MAX_DECODE_ROWS} rows")
        self.waits.at(BEFORE)
        rows = self.cache.append([(s, len(feed[s])) for s in order], assumed)
        groups = tuple(Group(i, 1, False) for i in range(len(rows)))
        batch = self._batch(groups, tuple(range(len(rows))) if read is not None else ())
        self._upload(batch, rows, [t for s in order for t in feed[s]])
        if place is not None:
            place(rows)
        following = self.cache.following(rows, ahead) if ahead is not None else None
        self._step(batch, rows, Next(*following) if following else None, advance=True)
        if read is None:
            self.waits.at(AFTER)
        else:
            self._readback.push(read, batch.outputs)
        return rows

    def run_ahead(self, feed: Mapping[int, int], n: int, queued: Callable[[int], None]) -> None:
        """``n`` steps whose tokens stay on the device (waits = quiet); ``queued(t)`` follows each,
        to queue what takes its tokens away."""
        order = sorted(feed)
        groups = tuple(Group(i, 1, False) for i in range(len(order)))
        batch = self._batch(groups, tuple(range(len(order))))
        for t in range(n):
            rows = self.cache.append([(s, 1) for s in order])
            self._feed(batch, rows, t, feed, None)
            following = self.cache.following(rows) if t + 1 < n else None
            self._step(batch, rows, Next(*following) if following else None, advance=True)
            queued(t)

    def read(self, index: int) -> StepOutput:
        """The outputs of the graph that was to be read back under ``index``."""
        return self._readback.pull(index)

    def sample(self, output: StepOutput, row: int) -> int:
        """The greedy token of one output row, by the host or the device (waits.py)."""
        return self._readback.sample(output, row)

    def mixed(self, decode: dict[int, int], sequence: int, tokens: Sequence[int]) -> StepOutput:
        """One graph of decode rows and one prompt tile of another sequence (T20)."""
        order = sorted(decode)
        if sequence in decode or not 1 <= len(tokens) <= TILE:
            raise UsageError(f"a mixed batch takes up to {TILE} tokens of a sequence of its own")
        groups = (
            *(Group(i, 1, False) for i in range(len(order))),
            Group(len(order), len(tokens), True),
        )
        self.waits.at(BEFORE)
        batch = self._batch(groups, tuple(range(len(order))))
        rows = self.cache.append([*((s, 1) for s in order), (sequence, len(tokens))])
        self._upload(batch, rows, [*(decode[s] for s in order), *tokens])
        self._step(batch, rows, None, advance=False)
        self._readback.push(0, batch.outputs)
        return self._readback.pull(0)

    def _take(self, t: int, order: Sequence[int], sink: Sink) -> dict[int, int]:
        """Read step ``t`` behind, sample it, and show it to ``sink``: the tokens to feed next."""
        output = self._readback.pull(t)
        tokens = [self._readback.sample(output, row) for row in range(len(order))]
        self.waits.at(AFTER)
        sink(replace(output, tokens=np.asarray(tokens, np.int32)))
        return dict(zip(order, tokens, strict=True))

    @property
    def _lag(self) -> int:
        """Tokens that the host may be behind: none where it chooses the next one."""
        return 0 if self.waits.host_samples else self.settings.lag

    # ------------------------------------------------------------------- details
    def _step(
        self, batch: Batch, rows: Sequence[Row], after: Next | None, *, advance: bool
    ) -> None:
        """One graph over ``rows``, which the cache has just been given."""
        batch.where = [r.where for r in rows]
        self._forward.graph(batch, self.cache.geometry(rows), after, advance=advance)

    def _batch(self, groups: tuple[Group, ...], outputs: tuple[int, ...]) -> Batch:
        """The one Batch of this shape: captured graphs hold on to it."""
        key = (groups, outputs)
        if key not in self._batches:
            self._batches[key] = Batch(groups, outputs, unified=self.settings.unified)
        return self._batches[key]

    def _upload(self, batch: Batch, rows: Sequence[Row], tokens: Tokens | None) -> None:
        ends = [g.start + g.size - 1 for g in batch.groups]
        self._forward.before_upload()
        for upload in self._uploads:
            upload.rows(rows, tokens, ends)

    def _feed(
        self,
        batch: Batch,
        rows: Sequence[Row],
        t: int,
        feed: Mapping[int, int],
        teacher: dict[int, Sequence[int]] | None,
    ) -> None:
        """Tokens come from the caller at first, then from whoever samples."""
        if t and teacher is not None:
            self._upload(batch, rows, [teacher[r.sequence][t - 1] for r in rows])
        elif t == 0 or self.waits.host_samples:
            self._upload(batch, rows, [feed[r.sequence] for r in rows])
        elif self.settings.unified:
            self._upload(batch, rows, None)
