"""Text to token ids and back, as the model's own file defines it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Tokenizer(Protocol):
    """What the rest of the project asks of a tokenizer."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def chat_template(self) -> str | None:
        """The model's Jinja chat template, if its file carries one."""

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a generation."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of ``text``; with ``special``, text such as ``<|im_start|>`` becomes one token."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens included; broken UTF-8 becomes U+FFFD."""

    def __hash__(self) -> int:
        """Tokenizers are told apart by identity."""
