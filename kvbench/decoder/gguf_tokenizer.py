"""The tokenizer a GGUF file carries: read once, stored, loaded when it is first used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kvbench.decoder import tokenizer_kinds
from kvbench.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine

T = TypeVar("T")

_END_TEXTS = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|end|>", "</s>"}
)


@dataclass(frozen=True, eq=False)
class TokenizerFiles:
    """A stored tokenizer, loaded when it is first used. Implements ``tokenizer.Tokenizer``."""

    path: Path
    facts: Mapping[str, Any] = field(repr=False)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return int(self.facts["vocab_size"])

    @property
    def chat_template(self) -> str | None:
        """The Jinja template in the file, if any."""
        template: str | None = self.facts["chat_template"]
        return template

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, if the file says that one is to be added."""
        bos: int | None = self.facts["bos_id"]
        return bos

    @property
    def eos_ids(self) -> frozenset[int]:
        """Ids that end a generation."""
        return frozenset(self.facts["eos_ids"])

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of ``text``; nothing is added in front. With ``special``, control tokens are read."""
        engine = self._reading_special if special else self._plain
        return list(engine.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD."""
        return self._plain.decode(list(ids), skip_special_tokens=False)

    @cached_property
    def _plain(self) -> Engine:
        engine = self._load()
        engine.encode_special_tokens = True  # i.e. as ordinary text
        return engine

    @cached_property
    def _reading_special(self) -> Engine:
        return self._load()

    def _load(self) -> Engine:
        from tokenizers import Tokenizer as Engine

        return Engine.from_file(str(self.path))


def read_tokenizer(fields: Mapping[str, Any], source: str, target: Path) -> dict[str, Any] | None:
    """Write the tokenizer in GGUF ``fields`` to ``target`` and return the facts beside it.

    None when the file has no tokenizer. Raises UsageError, naming ``source``, for a kind that is
    not supported: another tokenizer than the model's own would change every text silently.
    """
    model = fields.get("tokenizer.ggml.model")
    if model in (None, "none", "no_vocab"):
        return None
    if model not in ("gpt2", "llama"):
        raise UsageError(
            f"model {source}: tokenizer {model!r} is not supported; allowed: 'gpt2', 'llama'"
        )
    tokens = _list(fields, source, "tokens", str)
    kinds = _list(fields, source, "token_type", int, [1] * len(tokens))
    _require_lengths(source, tokens, token_type=kinds)
    if model == "gpt2":
        engine = _read_byte_level(fields, source, tokens, kinds)
    else:
        scores = _list(fields, source, "scores", float)
        _require_lengths(source, tokens, scores=scores)
        prefix = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
        engine = tokenizer_kinds.sentencepiece_bpe(tokens, kinds, scores, space_prefix=prefix)
    target.write_text(engine.to_str(), encoding="utf-8")
    return _facts(fields, tokens, kinds, bos_by_default=model == "llama")


def _read_byte_level(
    fields: Mapping[str, Any], source: str, tokens: list[str], kinds: list[int]
) -> Engine:
    merges = _list(fields, source, "merges", str)
    known = set(tokens)
    for merge in merges:
        left, right = tokenizer_kinds.split_merge(merge)
        if not right or not {left, right, left + right} <= known:
            raise UsageError(f"model {source}: merge {merge!r} is not of tokens of the vocabulary")
    pre = fields.get("tokenizer.ggml.pre", "")
    if pre not in tokenizer_kinds.PRE_TOKENIZERS:
        allowed = ", ".join(tokenizer_kinds.PRE_TOKENIZERS)
        raise UsageError(
            f"model {source}: pre-tokenizer {pre!r} is not supported; allowed: {allowed}"
        )
    return tokenizer_kinds.byte_level_bpe(tokens, kinds, merges, pre)


def _list(
    fields: Mapping[str, Any], source: str, name: str, kind: type[T], default: list[T] | None = None
) -> list[T]:
    """The list ``tokenizer.ggml.<name>``, all of whose items are of ``kind``."""
    key = f"tokenizer.ggml.{name}"
    value = fields.get(key, default)
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise UsageError(f"model {source}: {key} is not a list of {kind.__name__}")
    return value


def _require_lengths(source: str, tokens: list[str], **lists: Sequence[object]) -> None:
    """The lists fit together; a tokenizer that drops what does not would change texts."""
    if len(set(tokens)) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if token in tokens[:i])
        raise UsageError(f"model {source}: token {twice!r} is in the vocabulary twice")
    for name, values in lists.items():
        if len(values) != len(tokens):
            raise UsageError(
                f"model {source}: tokenizer.ggml.{name} has {len(values)} entries for"
                f" {len(tokens)} tokens"
            )


def _facts(
    fields: Mapping[str, Any], tokens: list[str], kinds: list[int], *, bos_by_default: bool
) -> dict[str, Any]:
    eos = {fields.get("tokenizer.ggml.eos_token_id"), fields.get("tokenizer.ggml.eot_token_id")}
    eos |= {
        i
        for i, (t, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == tokenizer_kinds.CONTROL and t in _END_TEXTS
    }
    wants_bos = fields.get("tokenizer.ggml.add_bos_token", bos_by_default)
    return {
        "vocab_size": len(tokens),
        "chat_template": fields.get("tokenizer.chat_template"),
        "bos_id": fields.get("tokenizer.ggml.bos_token_id") if wants_bos else None,
        "eos_ids": sorted(i for i in eos if i is not None),
    }
