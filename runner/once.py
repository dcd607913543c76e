"""One decode of the reference decoder in this process: what ``kvbench run`` prints."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvbench.errors import UsageError
from kvbench.records import Result

if TYPE_CHECKING:
    from kvbench.decoder.model import Model


class Request(msgspec.Struct, frozen=True):
    """What to decode, and how."""

    model: str
    kind: str = "prose"
    """A workload's kind, or the path of a text."""
    prompt: str | None = None
    """Text of the prompt; it replaces ``kind``, ``prompt_tokens`` and ``sequences``."""
    prompt_tokens: int = 1024
    generate: int = 48
    sequences: int = 1
    seed: int = 1
    seeded: bool = False
    """Start from ``prompt_tokens`` seeded rows instead of a prompt's prefill."""
    warmup: int = 1
    settings: tuple[str, ...] = ()
    """``NAME=VALUE`` for the decoder, values as in TOML."""


class Once(msgspec.Struct, frozen=True):
    """What came of it. ``texts`` is empty for a model without a tokenizer."""

    model: str
    model_digest: str
    prompt_tokens: list[int]
    tokens: list[list[int]]
    texts: list[str]
    result: Result
    history: str = ""
    """Label of a seeded history; empty for a prompt's prefill."""


def decode_once(request: Request) -> Once:
    """Decode ``request``. Raises UsageError for what cannot be decoded as asked."""
    from kvbench.decoder.model import open_model
    from kvbench.decoder.seeded import SeededHistory
    from kvbench.decoder.session import DecodeTask, run_task
    from kvbench.decoder.settings import parse

    settings = parse(read_settings(request.settings), source="--set")
    model = open_model(request.model)
    prompts = _prompts(model, request)
    history = SeededHistory(request.prompt_tokens, request.seed) if request.seeded else None
    task = DecodeTask(
        prompts=prompts,
        generate=request.generate,
        warmup=request.warmup,
        limits=True,
        history=history,
    )
    run = run_task(model, settings, task)
    tokenizer = model.tokenizer
    return Once(
        model=model.ref,
        model_digest=model.digest,
        prompt_tokens=[len(prompt) for prompt in prompts],
        tokens=run.tokens,
        texts=[tokenizer.decode(ids) for ids in run.tokens] if tokenizer else [],
        result=run.result,
        history=history.label() if history else "",
    )


def read_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """``NAME=VALUE`` pairs as a table; a value that is not TOML is taken as a string."""
    table: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"setting {pair!r}: NAME=VALUE is needed")
        if name in table:
            raise UsageError(f"setting {name} is given twice")
        try:
            table[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            table[name] = text
    return table


def _prompts(model: Model, request: Request) -> list[list[int]]:
    from kvbench.workloads import prompt_tokens, seeded_prompts

    if request.seeded:
        if request.prompt is not None:
            raise UsageError("a prompt and a seeded history exclude each other")
        if request.prompt_tokens < 1 or request.seed < 0:
            raise UsageError("a seeded history needs 1 token or more, and a seed from 0")
        return seeded_prompts(request.sequences, request.seed)
    if request.prompt is not None:
        if model.tokenizer is None:
            raise UsageError(f"model {model.ref} has no tokenizer: it cannot take a text")
        ids = model.tokenizer.encode(request.prompt)
        if not ids:
            raise UsageError("the prompt is empty: at least one token is needed")
        return [ids]
    kind: str | Path = request.kind
    return [
        prompt_tokens(
            kind,
            request.prompt_tokens,
            tokenizer=model.tokenizer,
            vocab_size=model.config.vocab_size,
            seed=request.seed,
            index=index,
        )
        for index in range(request.sequences)
    ]
