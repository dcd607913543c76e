"""A draft that is a model: its own engine, and so its own context, cache, ring and queue.

Where the host samples, each drafted token is read and fed again. In ``quiet`` the draft runs ahead
by itself: its tokens go from its queue to the target's memory, the target's queue waits for that,
and the host reads them when it reads the target's results. No wait is needed for the draft: the
host is behind the target, which was behind the draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kvbench.decoder.cache import Row
from kvbench.decoder.draft import MAX_DRAFT, Draft, Proposal, Texts
from kvbench.decoder.engine import Engine
from kvbench.decoder.readback import StepOutput
from kvbench.device.kernels import MAX_DECODE_ROWS, STATE_COLUMNS, TOKEN
from kvbench.device.memory import Buffer, Span

STEP_BYTES = MAX_DECODE_ROWS * 4
ROW_BYTES = STATE_COLUMNS * 4


class ModelDraft(Draft):
    """Drafts with ``engine``, for ``target``; the caller has filled the engine's cache."""

    def __init__(self, engine: Engine, target: Engine) -> None:
        self.engine, self.target = engine, target
        self._held: dict[int, int] = {s: engine.cache.length(s) for s in range(engine.sequences)}
        """Tokens of each sequence's text whose rows the draft's cache holds."""
        self._buffers = _Buffers(engine, target) if not engine.waits.host_samples else None

    def propose(self, texts: Texts, wanted: Mapping[int, int]) -> Proposal:
        """The draft's own greedy continuation; every sequence is drafted equally far."""
        n = max(wanted.values(), default=0)
        if n == 0:
            return Proposal()
        order = sorted(wanted)
        self._catch_up(texts, order)
        self.steps += n
        for s in order:
            self._held[s] += n
        feed = {s: texts[s][-1] for s in order}
        if self._buffers is not None:
            return self._run_ahead(self._buffers, order, feed, n)
        tokens: dict[int, list[int]] = {s: [] for s in order}

        def keep(step: StepOutput) -> None:
            for s, token in zip(order, step.tokens, strict=True):
                tokens[s].append(int(token))

        self.engine.generate(feed, n, keep)
        return Proposal(tokens)

    def settle(self, sequence: int, positions: int) -> None:
        """Roll back what was drafted beyond the accepted text."""
        if self._held[sequence] > positions:
            self.engine.truncate(sequence, positions)
            self._held[sequence] = positions
        if self._buffers is not None:
            self._buffers.passed()

    def close(self) -> None:
        """Free the buffers; the engine is closed by whoever opened it."""
        if self._buffers is not None:
            self._buffers.close()

    def _catch_up(self, texts: Texts, order: Sequence[int]) -> None:
        """Bring rows that are missing: one after a full acceptance, more after a new turn."""
        single: dict[int, list[int | None]] = {}
        for s in order:
            missing = list(texts[s][self._held[s] : -1])
            if len(missing) == 1:
                single[s] = [missing[0]]
            elif missing:
                self.engine.drain("turn")
                self.engine.prefill(s, missing)
                self.catch_ups += 1
            self._held[s] += len(missing)
        if single:
            self.engine.decode(single)
            self.catch_ups += 1

    def _run_ahead(
        self, buffers: _Buffers, order: Sequence[int], feed: Mapping[int, int], n: int
    ) -> Proposal:
        self.engine.run_ahead(feed, n, lambda step: buffers.keep(step, len(order)))
        buffers.hand_over()
        return _OnDevice(buffers, {s: i for i, s in enumerate(order)}, n)


class _Buffers:
    """Drafted tokens [step, row] int32: in the target's device memory, and on the host."""

    def __init__(self, engine: Engine, target: Engine) -> None:
        self.stage, self.target = engine.stages[-1], target
        self.device = self.stage.device
        nbytes = MAX_DRAFT * STEP_BYTES
        self.near = target.stages[0].device.alloc("drafted", nbytes)
        self.host: Buffer = self.device.alloc("drafted", nbytes, "host")
        self.event = self.device.event("drafted")

    def keep(self, step: int, rows: int) -> None:
        """Queue, behind the draft's step, the copies of its tokens."""
        chosen = self.stage.kernels.chosen.span(0, rows * 4)
        for buffer in (self.near, self.host):
            there = buffer.span(step * STEP_BYTES, rows * 4)
            self.device.copy(self.stage.compute, there, chosen, site="drafted")

    def hand_over(self) -> None:
        """The target's queues follow what the draft was given so far."""
        self.device.record(self.stage.compute, self.event)
        for stage in self.target.stages:
            stage.device.wait(stage.compute, self.event, "drafted")

    def passed(self) -> None:
        """The host has read results of the target that came after the hand-over."""
        record = self.event.latest
        if record is not None:
            self.device.context.learn(record.queue, record.id)

    def close(self) -> None:
        self.target.stages[0].device.free(self.near)
        self.device.free(self.host)
        self.device.drop_event(self.event)


class _OnDevice(Proposal):
    """Tokens that the host learns only with the target's results."""

    def __init__(self, buffers: _Buffers, lanes: Mapping[int, int], n: int) -> None:
        super().__init__()
        self.buffers, self.lanes, self.n = buffers, lanes, n

    def feed(self, sequence: int, limit: int) -> list[int | None]:
        return [None] * min(limit, self.n)

    def place(self, target: Engine, rows: Sequence[Row]) -> None:
        """One 2D copy a sequence: from the steps' tokens into the rows after its first."""
        for s, lane in self.lanes.items():
            own = [i for i, row in enumerate(rows) if row.sequence == s]
            if len(own) < 2:
                continue
            count = len(own) - 1
            for stage in target.stages:
                at = (own[0] + 1) * ROW_BYTES + TOKEN * 4
                stage.device.copy(
                    stage.compute,
                    Span(stage.kernels.state, at, 4, count, ROW_BYTES),
                    Span(self.buffers.near, lane * 4, 4, count, STEP_BYTES),
                    site="drafted",
                )

    def read(self, sequence: int) -> Sequence[int]:
        host, lane = self.buffers.host, self.lanes[sequence]
        span = Span(host, lane * 4, 4, self.n, STEP_BYTES)

        def take() -> list[int]:
            table = host.raw.view(np.int32).reshape(MAX_DRAFT, MAX_DECODE_ROWS)
            return [int(t) for t in table[: self.n, lane]]

        tokens: list[int] = self.buffers.device.host("drafted", take, reads=(span,), site="read")
        return tokens
