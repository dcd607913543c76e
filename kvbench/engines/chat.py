"""OpenAI's completions and chat completions: what is asked, and what a stream means."""

from __future__ import annotations

from typing import Any

import msgspec

from kvbench.engines.http import Response
from kvbench.engines.protocol import Top2
from kvbench.engines.serve import EngineFailure
from kvbench.engines.served import Stream

UNKNOWN_ID = -1
"""These interfaces name candidates by text, not by id."""


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Timings(msgspec.Struct, frozen=True):
    cache_n: int | None = None


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


def request(
    endpoint: str,
    model: str,
    prompt: list[int] | str,
    generate: int,
    *,
    logprobs: int,
    ignore_eos: bool,
) -> dict[str, Any]:
    """The body of a greedy, streamed request with usage at its end."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": generate,
        "temperature": 0,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if ignore_eos:
        body["ignore_eos"] = True
    if endpoint == "completions":
        body["prompt"] = prompt
        if logprobs:
            body["logprobs"] = logprobs
        return body
    if not isinstance(prompt, str):
        raise EngineFailure("prompt", "the chat endpoint takes text, not token ids")
    body["messages"] = [{"role": "user", "content": prompt}]
    if logprobs:
        body |= {"logprobs": True, "top_logprobs": logprobs}
    return body


def parse(response: Response) -> Stream:
    """Accumulate a stream. Raises EngineFailure for an error event, no usage, or nonsense."""
    stream = Stream(sent_at=response.sent_at, arrivals=[], count=0, text="", stop="")
    pieces: list[str] = []
    top2: list[Top2 | None] = []
    usage: _Usage | None = None
    reused = 0
    for event in response.events:
        if event.data == b"[DONE]":
            continue
        try:
            chunk = _decoder.decode(event.data)
        except msgspec.DecodeError as error:
            words = event.data[:200].decode(errors="replace")
            raise EngineFailure("answer", f"not a completion chunk ({error}): {words}") from None
        if chunk.error is not None:
            raise EngineFailure("request", f"the server broke off: {str(chunk.error)[:300]}")
        usage = chunk.usage or usage
        reused = max(reused, (chunk.timings.cache_n or 0) if chunk.timings else 0)
        for choice in chunk.choices:
            text = _text(choice)
            if text:
                stream.arrivals.append(event.at)
            stream.text += text
            stream.stop = choice.finish_reason or stream.stop
            for piece, pair in _candidates(choice.logprobs):
                pieces.append(piece)
                top2.append(pair)
    if usage is None:
        raise EngineFailure("answer", "the stream has no usage: tokens cannot be counted")
    if not stream.stop:
        raise EngineFailure("answer", "the stream ended without a finish_reason")
    details = usage.prompt_tokens_details
    cached = max(reused, (details.cached_tokens or 0) if details else 0)
    stream.count, stream.prompt_count = usage.completion_tokens, usage.prompt_tokens
    if cached:
        stream.numbers["cached_tokens"] = float(cached)
    if pieces:
        stream.pieces, stream.top2 = pieces, top2
    return stream


def _text(choice: _Choice) -> str:
    if choice.delta is None:
        return choice.text or ""
    delta = choice.delta
    return (delta.reasoning_content or delta.reasoning or "") + (delta.content or "")


def _candidates(logprobs: dict[str, Any] | None) -> list[tuple[str, Top2 | None]]:
    """Each token's text with its two best log probabilities, in either interface's shape."""
    if not logprobs:
        return []
    content = logprobs.get("content")
    if isinstance(content, list):
        return [
            (
                str(entry.get("token", "")),
                _best_two([c.get("logprob") for c in entry.get("top_logprobs") or ()]),
            )
            for entry in content
        ]
    tokens, tops = logprobs.get("tokens") or [], logprobs.get("top_logprobs") or []
    padded = list(tops) + [None] * (len(tokens) - len(tops))
    return [
        (str(token), _best_two(list((top or {}).values())))
        for token, top in zip(tokens, padded, strict=False)
    ]


def _best_two(values: list[Any]) -> Top2 | None:
    """None for fewer than two, or where all are 0.0: under speculation that means unknown."""
    numbers = sorted((float(v) for v in values if isinstance(v, int | float)), reverse=True)
    if len(numbers) < 2 or not any(numbers):
        return None
    return UNKNOWN_ID, numbers[0], UNKNOWN_ID, numbers[1]
