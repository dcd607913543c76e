"""The two kinds of tokenizer that files of the Llama architecture carry, built with ``tokenizers``.

``gpt2``: byte-level BPE with ranked merges. ``llama``: SentencePiece's BPE, whose file has scores
in place of merges: of all neighbouring pieces whose union is in the vocabulary, those with the
best score are joined first, and what is in no vocabulary becomes bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

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

CONTROL, USER_DEFINED = 3, 4
"""Values of ``tokenizer.ggml.token_type`` that are matched in the text before anything else."""

SPACE = "▁"
"""SentencePiece's letter for a space."""


def byte_level_bpe(
    tokens: Sequence[str], kinds: Sequence[int], merges: Sequence[str], pre: str
) -> Engine:
    """Byte-level BPE; ``pre`` is a key of PRE_TOKENIZERS."""
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Engine

    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [split_merge(merge) for merge in merges]
    engine = Engine(models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in PRE_TOKENIZERS[pre]]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    engine.decoder = decoders.ByteLevel()
    _add_matched_first(engine, tokens, kinds)
    return engine


def sentencepiece_bpe(
    tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float], *, space_prefix: bool
) -> Engine:
    """SentencePiece's BPE; with ``space_prefix`` a text is read as if it began with a space."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, normalizers

    vocab = {token: i for i, token in enumerate(tokens)}
    model = models.BPE(
        vocab=vocab,
        merges=list(merges_of_scores(tokens, scores)),
        unk_token=tokens[kinds.index(2)] if 2 in kinds else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    engine = Engine(model)
    escape = normalizers.Replace(" ", SPACE)
    prepend = [normalizers.Prepend(SPACE)] if space_prefix else []
    engine.normalizer = normalizers.Sequence([*prepend, escape])
    strip = [decoders.Strip(" ", 1, 0)] if space_prefix else []
    unescape = decoders.Replace(SPACE, " ")
    engine.decoder = decoders.Sequence([unescape, decoders.ByteFallback(), decoders.Fuse(), *strip])
    _add_matched_first(engine, tokens, kinds)
    return engine


def merges_of_scores(tokens: Sequence[str], scores: Sequence[float]) -> Iterator[tuple[str, str]]:
    """Every pair of tokens whose union is a token, by the union's score, best first."""
    vocab = {token: i for i, token in enumerate(tokens)}
    order = sorted(range(len(tokens)), key=lambda i: (-scores[i], i))
    for token in (tokens[i] for i in order):
        pairs = ((token[:at], token[at:]) for at in range(1, len(token)))
        known = [pair for pair in pairs if pair[0] in vocab and pair[1] in vocab]
        yield from sorted(known, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))


def split_merge(merge: str) -> tuple[str, str]:
    """The two sides of a merge as the file writes it; the right one is empty if it is malformed."""
    left, _, right = merge.partition(" ")
    return left, right


def _add_matched_first(engine: Engine, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    from tokenizers import AddedToken

    for token, kind in zip(tokens, kinds, strict=True):
        if kind in (CONTROL, USER_DEFINED):
            engine.add_tokens([AddedToken(token, normalized=False, special=kind == CONTROL)])
