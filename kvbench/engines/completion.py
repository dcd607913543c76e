"""llama-server's own ``/completion``: what is asked, and what a streamed answer means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvbench.engines.http import Response
from kvbench.engines.protocol import Top2
from kvbench.engines.serve import EngineFailure


class Timings(msgspec.Struct, frozen=True):
    """Of the last object of a stream; what is required is what is used."""

    prompt_n: int
    predicted_n: int
    cache_n: int | None = None
    prompt_ms: float | None = None
    predicted_ms: float | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None


class Candidate(msgspec.Struct, frozen=True):
    """One entry of ``top_logprobs``."""

    id: int
    logprob: float


class Probability(msgspec.Struct, frozen=True):
    """One generated token's candidates."""

    id: int
    top_logprobs: list[Candidate] = []


class Chunk(msgspec.Struct, frozen=True):
    """One object of the stream. Fields that are not used here are ignored: the schema drifts."""

    content: str = ""
    reasoning_content: str | None = None
    tokens: list[int] = []
    stop: bool = False
    stop_type: str | None = None
    truncated: bool = False
    tokens_evaluated: int | None = None
    timings: Timings | None = None
    completion_probabilities: list[Probability] = []


@dataclass(slots=True)
class Completion:
    """One sequence's answer."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    top2: list[Top2 | None] = field(default_factory=list)
    logprobs: list[dict[str, float]] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    """``time.monotonic`` of each chunk that carried tokens."""
    sent_at: float = 0.0
    stop: str = ""
    truncated: bool = False
    timings: Timings | None = None
    evaluated: int | None = None


def request(
    prompt: list[int] | str,
    generate: int,
    *,
    slot: int | None,
    probabilities: int,
    cache_prompt: bool,
) -> dict[str, Any]:
    """The body of a greedy, uncached request.

    With ``probabilities`` it is not streamed: a stream withholds tokens that do not complete a
    character, and loses them at the end.
    """
    body: dict[str, Any] = {
        "prompt": prompt,
        "n_predict": generate,
        "temperature": 0,
        "top_k": 1,
        "seed": 1,
        "ignore_eos": True,
        "cache_prompt": cache_prompt,
        "return_tokens": True,
        "stream": not probabilities,
    }
    if slot is not None:
        body["id_slot"] = slot
    if probabilities:
        body["n_probs"] = probabilities
    return body


_decoder = msgspec.json.Decoder(Chunk)


def parse(response: Response) -> Completion:
    """Read a stream, or a whole answer. Raises EngineFailure("answer") for what is malformed."""
    done = Completion(sent_at=response.sent_at)
    last: Chunk | None = None
    parts = [(event.at, event.data) for event in response.events]
    for at, data in parts or [(response.done_at, response.body)]:
        if data == b"[DONE]":
            continue
        try:
            last = _decoder.decode(data)
        except msgspec.DecodeError as error:
            words = data[:200].decode(errors="replace")
            raise EngineFailure("answer", f"not a completion ({error}): {words}") from None
        done.text += (last.reasoning_content or "") + last.content
        if last.tokens:
            done.arrivals.append(at)
            done.tokens += last.tokens
            for entry in align(last.tokens, last.completion_probabilities):
                done.top2.append(_best_two(entry.top_logprobs) if entry else None)
                candidates = entry.top_logprobs if entry else ()
                done.logprobs.append({str(c.id): c.logprob for c in candidates})
    if last is None or not last.stop:
        raise EngineFailure("answer", "the stream ended before its last object")
    if last.timings is None:
        raise EngineFailure("answer", "the last object has no timings")
    done.stop, done.truncated = last.stop_type or "", last.truncated
    done.timings, done.evaluated = last.timings, last.tokens_evaluated
    return done


def align(tokens: Sequence[int], entries: Sequence[Probability]) -> list[Probability | None]:
    """Each token's candidates, None where they are not certain.

    The server reports one entry for all tokens of an incomplete character, with the last one's
    id. An entry is placed only where matching from the left and from the right agree.
    """
    if len(entries) == len(tokens):
        pairs = zip(tokens, entries, strict=True)
        return [entry if entry.id == token else None for token, entry in pairs]
    n, m = len(tokens), len(entries)
    left = _greedy(tokens, [entry.id for entry in entries])
    right = _greedy(tokens[::-1], [entry.id for entry in reversed(entries)])
    placed: list[Probability | None] = [None] * n
    if left is None or right is None:
        return placed
    for number, entry in enumerate(entries):
        if left[number] == n - 1 - right[m - 1 - number]:
            placed[left[number]] = entry
    return placed


def _greedy(tokens: Sequence[int], ids: Sequence[int]) -> list[int] | None:
    """For each id the earliest position after the previous one's; None if one is not there."""
    positions: list[int] = []
    at = 0
    for wanted in ids:
        while at < len(tokens) and tokens[at] != wanted:
            at += 1
        if at == len(tokens):
            return None
        positions.append(at)
        at += 1
    return positions


def _best_two(candidates: Sequence[Candidate]) -> Top2 | None:
    """None where there are fewer than two, or all are 0.0: under speculation that means unknown."""
    if len(candidates) < 2 or all(c.logprob == 0.0 for c in candidates):
        return None
    best, second = candidates[:2]
    return best.id, best.logprob, second.id, second.logprob


def reused(done: Completion, prompt: list[int] | str) -> str | None:
    """Why the prompt was not computed afresh, or None. Text prompts: by ``cache_n`` alone."""
    timings = done.timings
    assert timings is not None
    if timings.cache_n:
        return f"{timings.cache_n} of its tokens came from a cache (cache_n)"
    if isinstance(prompt, list) and timings.prompt_n != len(prompt):
        return f"only {timings.prompt_n} of its {len(prompt)} tokens were computed (prompt_n)"
    return None
