"""Which servers can be put under load: path, request and reading of an answer by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kvbench.engines import chat, completion
from kvbench.engines.http import Response
from kvbench.engines.load.drive import Answer


class Endpoint(NamedTuple):
    """One interface of a server."""

    path: str
    body: Callable[[str, str, int], dict[str, Any]]
    """From model, prompt and number of tokens."""
    read: Callable[[Response], Answer]


def _native_body(_model: str, prompt: str, generate: int) -> dict[str, Any]:
    return completion.request(prompt, generate, slot=None, probabilities=0, cache_prompt=False)


def _native_read(response: Response) -> Answer:
    done = completion.parse(response)
    assert done.timings is not None
    return Answer(done.arrivals, done.timings.predicted_n, done.timings.cache_n or 0)


def _openai_body(endpoint: str) -> Callable[[str, str, int], dict[str, Any]]:
    def body(model: str, prompt: str, generate: int) -> dict[str, Any]:
        return chat.request(endpoint, model, prompt, generate, logprobs=0, ignore_eos=True)

    return body


def _openai_read(response: Response) -> Answer:
    stream = chat.parse(response)
    return Answer(stream.arrivals, stream.count, int(stream.numbers.get("cached_tokens", 0)))


ENDPOINTS = {
    "llama": Endpoint("/completion", _native_body, _native_read),
    "completions": Endpoint("/v1/completions", _openai_body("completions"), _openai_read),
    "chat": Endpoint("/v1/chat/completions", _openai_body("chat"), _openai_read),
}
