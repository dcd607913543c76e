"""Prompts of an exact length that follow from (kind, length, seed, index) alone.

A prompt begins with an opening, a first token that no other task of the same length and seed
has, and a nonce; real text follows. So no prefix of one task can serve another, in any cache.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from kvbench.decoder.tokenizer import Tokenizer
from kvbench.errors import SettingError, UsageError
from kvbench.paths import expanded
from kvbench.workloads.corpora import KINDS, Corpus, corpus
from kvbench.workloads.user_file import user_corpus
from kvbench.workloads.vocabulary import HashedVocabulary, ModelVocabulary, Vocabulary

MAX_TOKENS = 1 << 24
CHARS_PER_TOKEN = 5
"""First guess of the text needed; more is gathered when it is too little."""


def prompt_tokens(
    kind_or_path: str | Path,
    n_tokens: int,
    *,
    tokenizer: Tokenizer | None,
    seed: int,
    index: int,
    vocab_size: int | None = None,
) -> list[int]:
    """Exactly ``n_tokens`` ids of task ``index``: the same wherever the same texts are.

    ``kind_or_path`` is prose, code, json, dialogue, or a file of text or JSONL. Without a
    tokenizer ``vocab_size`` says how many ids there are (see ``HashedVocabulary``).
    Raises SettingError for a number out of range, UsageError for an unusable kind or file.
    """
    _check("n_tokens", n_tokens, 1)
    _check("seed", seed, 0)
    _check("index", index, 0)
    texts, label = _corpus(kind_or_path)
    vocabulary = _vocabulary(tokenizer, vocab_size)
    digest = hashlib.sha256(f"{label} {n_tokens} {seed} {index}".encode()).digest()
    opening = _opening(label, n_tokens, seed, index)
    wanted = n_tokens * CHARS_PER_TOKEN
    while True:
        text = f" {digest.hex()[:12]}\n" + _gather(texts, digest, wanted)
        ids = vocabulary.encode(opening, text)
        if len(ids) >= n_tokens:
            return ids[:n_tokens]
        wanted *= 2


def prompt_text(
    kind_or_path: str | Path,
    n_tokens: int,
    *,
    tokenizer: Tokenizer,
    seed: int,
    index: int,
) -> str:
    """The prompt as text, for engines that take text: it encodes to exactly ``n_tokens`` ids.

    Cutting ids can leave a piece of text that encodes otherwise; then some of the last ids give
    way to words that keep the count, so the ids may differ from ``prompt_tokens`` at the end.
    Another engine's tokenizer may count otherwise: go by the count that it reports.
    """
    ids = prompt_tokens(kind_or_path, n_tokens, tokenizer=tokenizer, seed=seed, index=index)
    vocabulary = _vocabulary(tokenizer, None)
    filler = tokenizer.encode(" and")[:1]
    for dropped in range(min(n_tokens, 64)):
        text = vocabulary.text_of(ids[: n_tokens - dropped] + filler * dropped)
        if text is not None:
            return text
    raise UsageError(
        f"workload {kind_or_path}: no text of exactly {n_tokens} tokens was found for task"
        f" {index}; another seed or length will do"
    )


def _check(name: str, value: int, least: int) -> None:
    most = MAX_TOKENS if name == "n_tokens" else 2**63 - 1
    if not least <= value <= most:
        raise SettingError(name, value, f"from {least} to {most}")


def _corpus(kind_or_path: str | Path) -> tuple[Corpus, str]:
    """The corpus and the label that enters the seed (a path does not: files move)."""
    if isinstance(kind_or_path, Path) or "/" in kind_or_path or "." in kind_or_path:
        return user_corpus(expanded(kind_or_path)), "file"
    return corpus(kind_or_path), kind_or_path


def _vocabulary(tokenizer: Tokenizer | None, vocab_size: int | None) -> Vocabulary:
    if tokenizer is not None:
        return _model_vocabulary(tokenizer)
    if vocab_size is None or vocab_size < 2:
        raise SettingError("vocab_size", vocab_size, "at least 2 for a model without a tokenizer")
    return HashedVocabulary(vocab_size)


@lru_cache(maxsize=4)
def _model_vocabulary(tokenizer: Tokenizer) -> ModelVocabulary:
    return ModelVocabulary(tokenizer)


def _opening(label: str, n_tokens: int, seed: int, index: int) -> int:
    """Another number for each (kind, index) of one length and seed."""
    kinds = (*KINDS, "file")
    start = hashlib.sha256(f"opening {n_tokens} {seed}".encode()).digest()
    return int.from_bytes(start[:6], "big") + index * len(kinds) + kinds.index(label)


def _gather(texts: Corpus, digest: bytes, wanted: int) -> str:
    """At least ``wanted`` characters of real text, in the order of this task."""
    parts: list[str] = []
    size = 0
    for piece in _endless(texts, digest):
        parts.append(piece)
        size += len(piece)
        if size >= wanted:
            return "".join(parts)
    raise AssertionError("the pieces never end")


def _endless(texts: Corpus, digest: bytes) -> Iterator[str]:
    chance = random.Random(digest)
    n = len(texts.pieces)
    order = list(range(n))
    start = chance.randrange(n)
    while True:
        if not texts.ordered:
            chance.shuffle(order)
        for i in range(n):
            yield texts.pieces[order[(start + i) % n]]


def seeded_prompts(sequences: int, seed: int) -> list[list[int]]:
    """One token for each sequence: what is fed after a history of seeded rows."""
    return [[(seed + index) % 97 + 1] for index in range(sequences)]
