"""The tokenizer a GGUF file carries, built with ``tokenizers``: byte-level BPE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Engine

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

PRE_TOKENIZERS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
    "command-r": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
}
"""``tokenizer.ggml.pre`` -> the expressions that cut the text, applied one after another."""

_WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3"})
"""A word that is in the vocabulary is one token even where merges would not lead there."""

_CONTROL, _USER_DEFINED = 3, 4
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
    if model != "gpt2":
        raise UsageError(f"model {source}: tokenizer {model!r} is not supported; allowed: 'gpt2'")
    tokens = _list(fields, source, "tokens")
    kinds: list[int] = fields.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    merges = _list(fields, source, "merges")
    _require_sense(source, tokens, kinds, merges)
    pre = fields.get("tokenizer.ggml.pre", "")
    if pre not in PRE_TOKENIZERS:
        allowed = ", ".join(PRE_TOKENIZERS)
        raise UsageError(
            f"model {source}: pre-tokenizer {pre!r} is not supported; allowed: {allowed}"
        )
    engine = _byte_level_bpe(tokens, kinds, merges, pre)
    target.write_text(engine.to_str(), encoding="utf-8")
    return _facts(fields, tokens, kinds)


def _list(fields: Mapping[str, Any], source: str, name: str) -> list[str]:
    key = f"tokenizer.ggml.{name}"
    value = fields.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"model {source}: {key} is not a list of strings")
    return value


def _require_sense(source: str, tokens: list[str], kinds: list[int], merges: list[str]) -> None:
    """The three lists fit together; a tokenizer that drops what does not would change texts."""
    known = set(tokens)
    if len(known) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if token in tokens[:i])
        raise UsageError(f"model {source}: token {twice!r} is in the vocabulary twice")
    if len(kinds) != len(tokens):
        raise UsageError(
            f"model {source}: tokenizer.ggml.token_type has {len(kinds)} entries for"
            f" {len(tokens)} tokens"
        )
    for merge in merges:
        left, right = _pair(merge)
        if not right or not {left, right, left + right} <= known:
            raise UsageError(f"model {source}: merge {merge!r} is not of tokens of the vocabulary")


def _byte_level_bpe(tokens: list[str], kinds: list[int], merges: list[str], pre: str) -> Engine:
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Engine

    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [_pair(merge) for merge in merges]
    engine = Engine(models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in PRE_TOKENIZERS[pre]]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    engine.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (_CONTROL, _USER_DEFINED):
            added = AddedToken(token, normalized=False, special=kind == _CONTROL)
            engine.add_tokens([added])
    return engine


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _facts(fields: Mapping[str, Any], tokens: list[str], kinds: list[int]) -> dict[str, Any]:
    eos = {fields.get("tokenizer.ggml.eos_token_id"), fields.get("tokenizer.ggml.eot_token_id")}
    eos |= {
        i
        for i, (t, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == _CONTROL and t in _END_TEXTS
    }
    wants_bos = fields.get("tokenizer.ggml.add_bos_token", False)
    return {
        "vocab_size": len(tokens),
        "chat_template": fields.get("tokenizer.chat_template"),
        "bos_id": fields.get("tokenizer.ggml.bos_token_id") if wants_bos else None,
        "eos_ids": sorted(i for i in eos if i is not None),
    }
