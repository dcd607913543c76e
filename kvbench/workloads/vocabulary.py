"""What tasks need of a vocabulary: encoding, and first tokens that no two tasks share."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

from kvbench.decoder.tokenizer import Tokenizer

SEARCHED_IDS = 8192
"""Openings are looked for among so many ids: there are thousands, and it takes under 0.1 s."""


class Vocabulary(Protocol):
    """How a task's text becomes ids."""

    @property
    def openings(self) -> int:
        """How many first tokens there are to choose from."""

    def encode(self, opening: int, text: str) -> list[int]:
        """Ids of a task: its first token is one of its own for every ``opening`` < ``openings``."""

    def text_of(self, ids: Sequence[int]) -> str | None:
        """The text that the tokenizer turns into exactly ``ids``; None if there is none."""


class ModelVocabulary:
    """The model's own tokenizer. Openings are words that are one token by themselves."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        ids = range(min(tokenizer.vocab_size, SEARCHED_IDS))
        words = {i: tokenizer.decode([i]) for i in ids}
        self._words = [
            word
            for i, word in words.items()
            if len(word) >= 3
            and word.isascii()
            and word.isalpha()
            and tokenizer.encode(word) == [i]
        ] or [""]

    @property
    def openings(self) -> int:
        return len(self._words)

    def encode(self, opening: int, text: str) -> list[int]:
        return self._tokenizer.encode(self._words[opening % len(self._words)] + text)

    def text_of(self, ids: Sequence[int]) -> str | None:
        text = self._tokenizer.decode(ids)
        return text if self._tokenizer.encode(text) == list(ids) else None


class HashedVocabulary:
    """For models without a tokenizer: the opening's id, then one id for each byte of UTF-8.

    An id is the CRC-32 of the byte and the two after it, modulo the vocabulary's size (the byte
    alone would leave most of the vocabulary unused). There is no way back to text.
    """

    def __init__(self, vocab_size: int) -> None:
        self.openings = vocab_size

    def encode(self, opening: int, text: str) -> list[int]:
        data = text.encode()
        ids = [zlib.crc32(data[i : i + 3]) % self.openings for i in range(len(data))]
        return [opening % self.openings, *ids]

    def text_of(self, ids: Sequence[int]) -> str | None:
        return None
