"""Conversations on the decoder: turn after turn on kept history, one conversation at a time.

A turn's answer ends at a stop token or at the cap. Where the host reads behind the device, the
stop is found late: rows beyond it are in the cache and a look-ahead may be in flight, so the cache
is cut back and drained before the next turn's prefill rewrites those rows (H10).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import fmean

from kvbench.decoder.collect import Collector, Top2
from kvbench.decoder.counts import counts
from kvbench.decoder.drafting import DRAFT, speculating, tally_counters, tally_telemetry
from kvbench.decoder.engine import Engine
from kvbench.decoder.faults import DelayHooks, hooks_for
from kvbench.decoder.model import Model
from kvbench.decoder.readback import StepOutput
from kvbench.decoder.session import charged, memory_of, races_of, transport_of
from kvbench.decoder.settings import DecoderSettings
from kvbench.decoder.speculation import Speculation
from kvbench.device.kvtypes import F32
from kvbench.device.oplog import OpLog
from kvbench.errors import UsageError
from kvbench.records import Result
from kvbench.records.capture import END

Turns = Sequence[Sequence[int]]
"""What each turn of a conversation adds before the model answers (token ids)."""


@dataclass(frozen=True, slots=True)
class ConversationTask:
    """Conversations to have, one after another."""

    conversations: Sequence[Turns]
    generate: int
    """Most tokens of an answer."""
    stops: frozenset[int] = frozenset()
    """Tokens that end an answer; they belong to it."""
    warmup: int = 0
    """Tokens decoded on the first opening, and discarded, before the clock starts."""
    detail: bool = False


@dataclass(frozen=True, slots=True)
class ConversationRun:
    """What came of it: tokens, and their top-2 if asked for, by conversation."""

    tokens: list[list[int]]
    top2: list[list[Top2]]
    result: Result
    log: OpLog | None = None


@dataclass(slots=True)
class _Turn:
    """One answer's times, seconds."""

    prefill_s: float
    first_s: float
    """From the turn's start to its first token."""
    decode_s: float
    tokens: int


@dataclass(slots=True)
class _Tally:
    """Counters of the turns."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Rows of history that a turn found in the cache instead of computing them again."""
    stopped: int = 0
    overrun: int = 0
    """Steps issued beyond a stop that was found late."""


@dataclass(slots=True)
class Talk:
    """One sequence of an engine, fed turn by turn."""

    engine: Engine
    speculation: Speculation | None
    text: list[int] = field(default_factory=list)
    """Everything said; all but its last token are in the cache between turns."""
    tally: _Tally = field(default_factory=_Tally)

    def restart(self) -> None:
        """Forget everything: another conversation begins."""
        self.engine.drain("conversation")
        self.engine.reset(0)
        if self.speculation is not None:
            self.speculation.draft.settle(0, 0)
        self.text.clear()

    def hear(self, tokens: Sequence[int], stops: frozenset[int]) -> None:
        """Take in what the user says; the history is kept, not computed again."""
        said = list(tokens)
        if self.text and self.text[-1] in stops and said and said[0] == self.text[-1]:
            del said[0]  # the answer has ended itself as the template would end it
        self.text += said
        held = self.engine.cache.length(0)
        self.tally.reused_tokens += held
        self.tally.prompt_tokens += len(self.text) - 1 - held
        self.engine.drain("turn")
        self.engine.prefill(0, self.text[held:-1])
        self.engine.drain("turn")

    def answer(
        self, cap: int, stops: frozenset[int], emit: Callable[[int, F32, int], None]
    ) -> list[int]:
        """The model's answer: up to ``cap`` tokens, or up to and including a stop."""
        start = len(self.text)
        if self.speculation is not None:
            self.speculation.generate(
                {0: self.text}, cap, lambda _, *rest: emit(*rest), stop=stops.__contains__
            )
        else:
            self._plain(cap, stops, emit)
        said = self.text[start:]
        self.tally.stopped += said[-1] in stops
        return said

    def _plain(
        self, cap: int, stops: frozenset[int], emit: Callable[[int, F32, int], None]
    ) -> None:
        said: list[int] = []

        def take(step: StepOutput) -> None:
            said.append(int(step.tokens[0]))
            emit(said[-1], step.logits[0], int(step.sums[0]))

        issued = self.engine.generate({0: self.text[-1]}, cap, take, stop=lambda: said[-1] in stops)
        self.tally.overrun += issued - len(said)
        self.text += said
        if issued > len(said):
            self.engine.truncate(0, len(self.text) - 1)


def run_conversations(
    model: Model,
    settings: DecoderSettings,
    task: ConversationTask,
    *,
    hooks: DelayHooks | None = None,
) -> ConversationRun:
    """Have the conversations of ``task``, each from an empty cache."""
    _check(model, task)
    longest = max(sum(len(t) + task.generate for t in c) for c in task.conversations)
    log = OpLog() if settings.record else None
    engine = Engine(
        model,
        settings,
        1,
        settings.context or longest + task.warmup,
        hooks=hooks or hooks_for(settings),
        log=log,
    )
    collect = Collector(len(task.conversations), task.detail, 0)
    with engine, ExitStack() as stack:
        engines, speculation = {"": engine}, None
        if settings.speculates:
            speculation, beside = stack.enter_context(speculating(engine, [[]], None))
            if beside is not None:
                engines[f"{DRAFT}."] = beside
        if task.warmup:
            warm = Talk(engine, speculation)
            warm.hear(task.conversations[0][0], task.stops)
            warm.answer(task.warmup, frozenset(), lambda *_: None)
            warm.restart()
        talk = Talk(engine, speculation)
        if speculation is not None:
            speculation.forget_counts()
        before = counts(engines)
        collect.measured.start()
        spans = [_have(talk, task, i, collect) for i in range(len(task.conversations))]
        collect.measured.end()
        if log is not None:
            log.mark(END)
        done = counts(engines).since(before)
        counters, spoken = dict(done.calls), {}
        if speculation is not None:
            counters |= tally_counters(speculation.tally, speculation.draft)
            spoken = {"speculation": tally_telemetry(speculation.tally)}
        result = Result(
            tokens=sum(len(row) for row in collect.tokens),
            decode_s=sum(turn.decode_s for turns in spans for turn in turns),
            metrics=_metrics(spans) | {"cached_tokens": float(talk.tally.reused_tokens)},
            hashes=collect.hashes(audit=settings.audit),
            bytes=dict(done.moved),
            waits=done.sites,
            counters=counters
            | {
                "conversations": len(spans),
                "turns": sum(len(turns) for turns in spans),
                "prompt_tokens": talk.tally.prompt_tokens,
                "reused_tokens": talk.tally.reused_tokens,
                "stopped": talk.tally.stopped,
                "overrun": talk.tally.overrun,
            },
            telemetry={
                **transport_of(engines.values(), log),
                **spoken,
                **charged(settings),
                **races_of(log),
            },
            memory=memory_of(engines),
        )
    return ConversationRun(collect.tokens, collect.top2, result, log)


def _have(talk: Talk, task: ConversationTask, index: int, collect: Collector) -> list[_Turn]:
    """One conversation, from an empty cache."""
    talk.restart()
    spans = []
    for turn in task.conversations[index]:
        begin = time.perf_counter()
        talk.hear(turn, task.stops)
        heard = time.perf_counter()
        first: list[float] = []

        def emit(token: int, logits: F32, audit: int, first: list[float] = first) -> None:
            if not first:
                first.append(time.perf_counter())
            collect.add(index, token, logits, audit)

        said = talk.answer(task.generate, task.stops, emit)
        end = time.perf_counter()
        spans.append(_Turn(heard - begin, first[0] - begin, end - heard, len(said)))
    return spans


def _metrics(spans: Sequence[Sequence[_Turn]]) -> dict[str, float]:
    """Means over conversations, each counting once, as the origin reports them."""
    rates = [sum(t.tokens for t in c) / sum(t.decode_s for t in c) for c in spans]
    turns = [turn for c in spans for turn in c]
    return {
        "conversation_tok_s": fmean(rates),
        "conversation_latency_s": fmean(sum(t.prefill_s + t.decode_s for t in c) for c in spans),
        "ttft_s": fmean(turn.first_s for turn in turns),
        "tokens_per_turn": fmean(turn.tokens for turn in turns),
    }


def _check(model: Model, task: ConversationTask) -> None:
    if task.generate < 1 or task.warmup < 0:
        raise UsageError(f"generate = {task.generate}, warmup = {task.warmup}: at least 1 and 0")
    if not task.conversations:
        raise UsageError("there is no conversation")
    vocabulary = model.config.vocab_size
    for i, turns in enumerate(task.conversations):
        if not turns or not all(turns):
            raise UsageError(f"conversation {i}: a turn is empty; at least one token is needed")
        bad = next((t for turn in turns for t in turn if not 0 <= t < vocabulary), None)
        if bad is not None:
            raise UsageError(
                f"conversation {i}: token {bad} is outside the vocabulary of {vocabulary}"
            )
