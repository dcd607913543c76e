"""Greedy, lossless speculation: a draft guesses, the target verifies the guesses in one batch.

A round for a sequence of L cached positions and one pending token: the draft proposes k tokens;
one graph of the target takes the pending token and the k guesses, each in a row of its own;
the longest agreeing prefix is accepted, and the target's own next token comes with it. The rows
of rejected guesses are rolled back, so at least position L stands, whatever was accepted: that,
and no more, is what the look-ahead may take to be stable (H9).

Rows are computed one by one whatever the batch, so the output is that of plain decoding, byte for
byte: logits, tokens and audit sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from kvbench.decoder.draft import MAX_DRAFT, Draft, Proposal
from kvbench.decoder.engine import Engine
from kvbench.decoder.readback import StepOutput
from kvbench.decoder.waits import AFTER
from kvbench.device.kernels import MAX_DECODE_ROWS
from kvbench.device.kvtypes import F32
from kvbench.device.ranges import ranged
from kvbench.errors import SettingError
from kvbench.records.capture import TOKEN

Emit = Callable[[int, int, F32, int], None]
"""What sees each token: (sequence, token, its logits [vocabulary], its row's audit sum)."""


@dataclass(slots=True)
class Tally:
    """Counters of a run. Positions count from the first guess."""

    rounds: int = 0
    drafted: int = 0
    """Guesses that were verified."""
    accepted: int = 0
    generated: int = 0
    offered_at: list[int] = field(default_factory=lambda: [0] * MAX_DRAFT)
    accepted_at: list[int] = field(default_factory=lambda: [0] * MAX_DRAFT)

    def verified(self, drafted: int, accepted: int) -> None:
        """Count one sequence's part of a round."""
        self.drafted += drafted
        self.accepted += accepted
        self.generated += accepted + 1
        for i in range(drafted):
            self.offered_at[i] += 1
            self.accepted_at[i] += i < accepted

    def by_position(self) -> list[float]:
        """Share of the guesses at each position that was accepted, as far as any was offered."""
        pairs = zip(self.accepted_at, self.offered_at, strict=True)
        return [accepted / offered for accepted, offered in pairs if offered]


class Speculation:
    """Decodes on ``target`` with guesses of ``draft``, up to ``length`` at a time."""

    def __init__(self, target: Engine, draft: Draft, length: int) -> None:
        if not 1 <= length <= MAX_DRAFT:
            raise SettingError("draft_length", length, f"from 1 to {MAX_DRAFT}")
        if "recurrent" in target.model.config.layer_kinds:
            raise SettingError("draft", "", "none: a recurrent state cannot go back in time")
        self.target, self.draft, self.length = target, draft, length
        self.tally = Tally()
        self._assumed: dict[int, int] = {}
        self._marked = 0

    def forget_counts(self) -> None:
        """Start counting anew: what came before was warm-up."""
        self.tally = Tally()
        self.draft.steps = self.draft.catch_ups = 0

    def generate(
        self,
        texts: dict[int, list[int]],
        n: int,
        emit: Emit,
        *,
        stop: Callable[[int], bool] | None = None,
    ) -> None:
        """``n`` tokens for each sequence of ``texts``, which grow by them.

        A text's last token is the one to feed; the tokens before it are in the target's cache.
        A sequence ends early once ``stop(its last token)`` is true.
        """
        left = dict.fromkeys(texts, n)
        while left:
            with ranged(TOKEN):
                self._mark()
                first = self._round(texts, left, emit, stop)
            for _ in range(first - 1):  # they came with the round's first token
                with ranged(TOKEN):
                    self._mark()

    def _round(
        self,
        texts: dict[int, list[int]],
        left: dict[int, int],
        emit: Emit,
        stop: Callable[[int], bool] | None,
    ) -> int:
        """Draft and verify once for every sequence that is ``left``; tokens of the first one."""
        wanted = {s: min(self.length, left[s] - 1, self._room(s)) for s in left}
        proposal = self.draft.propose({s: texts[s] for s in left}, wanted)
        self.tally.rounds += 1
        feeds = {s: [texts[s][-1], *proposal.feed(s, k)] for s, k in wanted.items()}
        batches = list(_batches(feeds))
        yielded: list[int] = []
        for batch in batches:
            output, rows = self._verify(batch, proposal, alone=len(batches) == 1)
            for s, first in rows.items():
                tokens = self._accept(output, first, len(batch[s]) - 1, proposal, s, stop)
                for i, token in enumerate(tokens):
                    emit(s, token, output.logits[first + i], int(output.sums[first + i]))
                self._settle(s, texts[s], tokens)
                yielded.append(len(tokens))
                left[s] -= len(tokens)
                if left[s] == 0 or (stop is not None and stop(tokens[-1])):
                    del left[s]
            self.target.waits.at(AFTER)
        return yielded[0]

    def _mark(self) -> None:
        if self.target.log is not None:
            self.target.log.mark(TOKEN, step=self._marked)
        self._marked += 1

    def _verify(
        self, batch: Mapping[int, Sequence[int | None]], proposal: Proposal, *, alone: bool
    ) -> tuple[StepOutput, dict[int, int]]:
        """One graph over ``batch``; its outputs, and each sequence's first row in them.

        ``alone``: the next graph is the next round's, so the look-ahead may reach into it.
        """
        assumed = {s: self._assumed[s] for s in batch if s in self._assumed}
        rows = self.target.decode(
            batch,
            assumed=assumed,
            ahead={s: len(batch[s]) for s in batch} if alone else None,
            place=partial(proposal.place, self.target),
            read=0,
        )
        first: dict[int, int] = {}
        for i, row in enumerate(rows):
            first.setdefault(row.sequence, i)
        self._assumed = {s: rows[i].position + 1 for s, i in first.items()} if alone else {}
        return self.target.read(0), first

    def _accept(
        self,
        output: StepOutput,
        first: int,
        drafted: int,
        proposal: Proposal,
        sequence: int,
        stop: Callable[[int], bool] | None,
    ) -> list[int]:
        """The target's tokens up to and including the first that no guess agrees with."""
        guesses = proposal.read(sequence) if drafted else ()
        tokens: list[int] = []
        for i in range(drafted + 1):
            tokens.append(self.target.sample(output, first + i))
            ended = stop is not None and stop(tokens[-1])
            if ended or i == drafted or guesses[i] != tokens[-1]:
                break
        self.tally.verified(drafted, len(tokens) - 1)
        return tokens

    def _settle(self, sequence: int, text: list[int], tokens: Sequence[int]) -> None:
        """The text grows; rows beyond all of it but its last token are rolled back."""
        text += tokens
        if self.target.cache.length(sequence) > len(text) - 1:
            self.target.truncate(sequence, len(text) - 1)
        self.draft.settle(sequence, len(text) - 1)

    def _room(self, sequence: int) -> int:
        """Guesses that still fit the target's cache beside the pending token."""
        cache = self.target.cache
        return max(0, cache.capacity - cache.length(sequence) - 1)


def _batches(
    feeds: Mapping[int, Sequence[int | None]],
) -> Iterator[dict[int, Sequence[int | None]]]:
    """Sequences verified together: in order, as many as a decode batch has rows for."""
    batch: dict[int, Sequence[int | None]] = {}
    rows = 0
    for s in sorted(feeds):
        if rows + len(feeds[s]) > MAX_DECODE_ROWS:
            yield batch
            batch, rows = {}, 0
        batch[s] = feeds[s]
        rows += len(feeds[s])
    if batch:
        yield batch
