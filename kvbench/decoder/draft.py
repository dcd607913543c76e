"""Who guesses the next tokens: a shallower copy of the target, another model, or the text itself.

A draft may be wrong at no cost but time: the target verifies every token (speculation.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvbench.decoder.cache import Row
from kvbench.decoder.engine import Engine
from kvbench.decoder.model import Model, open_model
from kvbench.errors import SettingError

MAX_DRAFT = 15
"""Tokens drafted at once: with the token that is fed, 16 rows, the widest decode batch."""

PROMPT = "prompt"
LAYERS = "layers:"

Texts = Mapping[int, Sequence[int]]


@dataclass(slots=True)
class Proposal:
    """Drafted tokens by sequence, known to the host."""

    tokens: dict[int, list[int]] = field(default_factory=dict)

    def feed(self, sequence: int, limit: int) -> list[int | None]:
        """At most ``limit`` tokens to verify; None where only the device knows one."""
        return list(self.tokens.get(sequence, ())[:limit])

    def place(self, target: Engine, rows: Sequence[Row]) -> None:
        """Queue what brings tokens that the host does not know to the target's ``rows``."""
        return

    def read(self, sequence: int) -> Sequence[int]:
        """The drafted tokens, after the target's results were read."""
        return self.tokens.get(sequence, ())


class Draft(ABC):
    """Guesses what follows each sequence's text."""

    steps: int = 0
    """Graphs with outputs that drafting took."""
    catch_ups: int = 0
    """Graphs without outputs that brought the draft's cache up to the text."""

    @abstractmethod
    def propose(self, texts: Texts, wanted: Mapping[int, int]) -> Proposal:
        """Up to ``wanted[s]`` tokens to follow ``texts[s]``, whose last token is in no cache."""

    def settle(self, sequence: int, positions: int) -> None:
        """Only the first ``positions`` tokens of the sequence's text stand."""
        return

    def close(self) -> None:
        """Give everything back."""
        return


@dataclass(slots=True)
class PromptLookup(Draft):
    """What followed the last occurrence of the text's own ending (longest match first)."""

    longest: int = 3
    """Tokens of the ending that are looked for, at most."""

    def propose(self, texts: Texts, wanted: Mapping[int, int]) -> Proposal:
        """Fewer tokens, or none, where the ending occurs nowhere else."""
        return Proposal({s: lookup(texts[s], n, self.longest) for s, n in wanted.items()})


def lookup(text: Sequence[int], n: int, longest: int) -> list[int]:
    """Up to ``n`` tokens that followed the latest earlier occurrence of ``text``'s ending."""
    for size in range(min(longest, len(text) - 1), 0, -1):
        ending = list(text[-size:])
        for start in range(len(text) - size - 1, -1, -1):
            if list(text[start : start + size]) == ending:
                return list(text[start + size : start + size + n])
    return []


def shallow(model: Model, layers: int) -> Model:
    """The first ``layers`` layers of ``model`` with its norm, head and embedding."""
    config = model.config
    if not 1 <= layers < config.n_layers:
        raise SettingError(
            "draft", f"{LAYERS}{layers}", f"layers:1 to layers:{config.n_layers - 1} for this model"
        )
    kinds = config.layer_kinds[:layers]
    return Model(
        f"{model.ref} ({layers} layers)",
        replace(config, n_layers=layers, layer_kinds=kinds, shallow_layers=0),
        model.weights,
        model.tokenizer,
        f"{model.digest}/{layers}",
    )


def draft_model(target: Model, ref: str) -> Model:
    """The model that ``settings.draft`` names: ``layers:K`` of the target, or another model."""
    if ref.startswith(LAYERS):
        text = ref.removeprefix(LAYERS)
        if not text.isascii() or not text.isdecimal():
            raise SettingError("draft", ref, "layers:K with K a whole number")
        return shallow(target, int(text))
    model = open_model(ref)
    if model.config.vocab_size != target.config.vocab_size:
        raise SettingError(
            "draft",
            ref,
            f"a model with the target's vocabulary of {target.config.vocab_size}, "
            f"not {model.config.vocab_size}",
        )
    return model
