"""Programs: sequences of engine calls whose outputs must not depend on transport or schedule."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from kvbench.decoder.draft import Draft, Proposal, Texts
from kvbench.decoder.engine import Engine
from kvbench.decoder.history import extract, insert
from kvbench.decoder.readback import StepOutput
from kvbench.decoder.snapshot import Snapshot
from kvbench.decoder.speculation import Speculation
from kvbench.device.kvtypes import F32


@dataclass(frozen=True, slots=True)
class Prefill:
    """``count`` prompt tokens for one sequence, in tiles."""

    sequence: int
    count: int


@dataclass(frozen=True, slots=True)
class Decode:
    """``count`` greedy steps of several sequences at once."""

    sequences: tuple[int, ...]
    count: int
    more: bool = False
    """Whether a look-ahead is left in flight, as when a stop is found late (H10)."""


@dataclass(frozen=True, slots=True)
class Speculate:
    """``count`` greedy tokens of one sequence, verified together with up to ``guesses`` guesses."""

    sequence: int
    count: int
    guesses: int


@dataclass(frozen=True, slots=True)
class Mixed:
    """One graph with decode rows and a prompt tile of another sequence."""

    decode: tuple[int, ...]
    sequence: int
    count: int


@dataclass(frozen=True, slots=True)
class Shift:
    """Drop ``discard`` positions after ``keep`` and close up."""

    sequence: int
    keep: int
    discard: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Forget the last ``count`` positions."""

    sequence: int
    count: int


@dataclass(frozen=True, slots=True)
class Reset:
    """Empty one sequence."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Clear:
    """Empty the cache."""


@dataclass(frozen=True, slots=True)
class Save:
    """Keep a copy of a sequence's state."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Load:
    """Empty a sequence and load its kept state."""

    sequence: int


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Device memory left beside what is in use from now on, in MiB (None: without bound)."""

    mib: float | None


Step = (
    Prefill
    | Decode
    | Speculate
    | Mixed
    | Shift
    | Truncate
    | Reset
    | Clear
    | Save
    | Load
    | FreeMemory
)
Program = Sequence[Step]


@dataclass(slots=True)
class Digest:
    """Hash of everything that came out, and the tokens for people to read."""

    tokens: list[list[int]] = field(default_factory=list)
    _state: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    def __call__(self, step: StepOutput) -> None:
        """Take in one step's outputs: logits, tokens and audit sums, all bytes."""
        self._state.update(step.logits.tobytes())
        self._state.update(step.tokens.tobytes())
        self._state.update(step.sums.tobytes())
        self.tokens.append(step.tokens.tolist())

    def token(self, sequence: int, token: int, logits: F32, audit: int) -> None:
        """Take in one token that was verified: the same bytes as a step of its sequence alone."""
        self._state.update(logits.tobytes())
        self._state.update(np.asarray([token], np.int32).tobytes())
        self._state.update(np.asarray([audit], np.uint64).tobytes())
        self.tokens.append([token])

    def hexdigest(self) -> str:
        """So far."""
        return self._state.hexdigest()


class Guesses(Draft):
    """Guesses without a model, now and then right: every round rolls rows back."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def propose(self, texts: Texts, wanted: Mapping[int, int]) -> Proposal:
        """Numbers that follow from the last token."""
        return Proposal(
            {
                s: [(texts[s][-1] * 7 + i) % self.vocabulary for i in range(n)]
                for s, n in wanted.items()
            }
        )


def execute(engine: Engine, program: Program, digest: Digest, *, seed: int = 0) -> None:
    """Run ``program``; prompt tokens are drawn from ``seed``, the same whatever the settings."""
    random = np.random.default_rng(seed)
    vocabulary = engine.model.config.vocab_size
    kept: dict[int, Snapshot] = {}
    feed = {s: 1 + s for s in range(engine.sequences)}

    def draw(count: int) -> list[int]:
        return [int(t) for t in random.integers(0, vocabulary, count)]

    def last(step: StepOutput, sequences: Sequence[int]) -> None:
        digest(step)
        feed.update(zip(sequences, step.tokens.tolist(), strict=True))

    for step in program:
        match step:
            case Prefill(sequence, count):
                engine.prefill(sequence, draw(count))
            case Decode(sequences, count, more):
                order = sorted(sequences)
                engine.generate(
                    {s: feed[s] for s in order}, count, partial(last, sequences=order), more=more
                )
            case Speculate(sequence, count, guesses):
                text = {sequence: [0] * engine.cache.length(sequence) + [feed[sequence]]}
                draft = Guesses(vocabulary)
                Speculation(engine, draft, guesses).generate(text, count, digest.token)
                feed[sequence] = text[sequence][-1]
            case Mixed(decode, sequence, count):
                order = sorted(decode)
                out = engine.mixed({s: feed[s] for s in order}, sequence, draw(count))
                last(out, order)
            case Shift(sequence, keep, discard):
                engine.shift(sequence, keep, discard)
            case Truncate(sequence, count):
                engine.truncate(sequence, engine.cache.length(sequence) - count)
            case Reset(sequence):
                engine.reset(sequence)
            case Clear():
                engine.clear()
            case Save(sequence):
                kept[sequence] = extract(engine, sequence)
            case Load(sequence):
                engine.reset(sequence)
                insert(engine, sequence, kept[sequence])
            case FreeMemory(mib):
                for device in engine.devices:
                    used = device.used_bytes["device"]
                    device.capacity = None if mib is None else used + int(mib * (1 << 20))
