"""Small GGUF files of the Llama architecture, in any type that ``gguf`` can write."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

from kvbench.decoder.config import ModelConfig
from kvbench.decoder.synthetic import SyntheticWeights

SHAPE = ModelConfig("sample", 2, 256, 4, 2, 64, 256, 320, 512, rope_theta=10_000.0)


def byte_letters() -> list[str]:
    """The 256 one-byte tokens of byte-level BPE, in the order of the bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def write_gguf(
    path: Path,
    *,
    config: ModelConfig = SHAPE,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    tied: bool = False,
    fields: dict[str, Any] | None = None,
    drop: tuple[str, ...] = (),
    extra: dict[str, Any] | None = None,
    architecture: str = "llama",
    tokenizer: bool = True,
    sentencepiece: tuple[list[str], list[float], list[int]] | None = None,
    raw: dict[str, tuple[Any, gguf.GGMLQuantizationType]] | None = None,
) -> dict[str, Any]:
    """Write a model with seeded weights of type ``kind``; return its tensors as float32.

    ``fields`` overrides metadata (None leaves a field out); ``raw`` overrides tensors with bytes
    already quantised.
    """
    writer = gguf.GGUFWriter(path, architecture)
    metadata: dict[str, Any] = {
        "block_count": config.n_layers,
        "context_length": config.context,
        "embedding_length": config.d_model,
        "feed_forward_length": config.d_ff,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.n_kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": config.rope_theta,
        "rope.dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    for key, value in (metadata | (fields or {})).items():
        if value is None:
            continue
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        if isinstance(value, list):
            writer.add_array(f"{architecture}.{key}", value)
        else:
            add[type(value)](f"{architecture}.{key}", value)
    if sentencepiece:
        _write_sentencepiece(writer, *sentencepiece)
    elif tokenizer:
        _write_tokenizer(writer, config)
    written: dict[str, Any] = {}
    for name, values in _tensors(config, tied).items():
        if name in drop:
            continue
        if raw and name in raw:
            data, actual = raw[name]
        else:
            actual = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
            data = quantize(values, actual)
        writer.add_tensor(name, data, raw_dtype=actual)
        written[name] = gguf.quants.dequantize(data, actual).astype(np.float32)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def _write_tokenizer(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    tokens = byte_letters() + [f"<|{i}|>" for i in range(config.vocab_size - 256 - 4)]
    control = len(tokens) - 256
    merged = ["th", "the", "Ġthe", "in"]
    kinds = [1] * 256 + [3] * control + [1] * len(merged)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens + merged)
    writer.add_token_types(kinds)
    writer.add_token_merges(["t h", "th e", "Ġ the", "i n"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(False)


def _write_sentencepiece(
    writer: gguf.GGUFWriter, tokens: list[str], scores: list[float], kinds: list[int]
) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def _tensors(config: ModelConfig, tied: bool) -> dict[str, Any]:
    weights = SyntheticWeights(config, seed=5)
    q, k = config.q_width, config.kv_width
    tensors = {"token_embd.weight": weights["embed"], "output_norm.weight": weights["final_norm"]}
    if not tied:
        tensors["output.weight"] = weights["head"]
    for i in range(config.n_layers):
        wqkv, gate_up = weights[f"{i}.wqkv"], weights[f"{i}.w_gate_up"]
        parts = {
            "attn_norm": weights[f"{i}.attn_norm"],
            "attn_q": wqkv[:q],
            "attn_k": wqkv[q : q + k],
            "attn_v": wqkv[q + k :],
            "attn_output": weights[f"{i}.wo"],
            "ffn_norm": weights[f"{i}.ffn_norm"],
            "ffn_gate": gate_up[: config.d_ff],
            "ffn_up": gate_up[config.d_ff :],
            "ffn_down": weights[f"{i}.w_down"],
        }
        tensors |= {f"blk.{i}.{name}.weight": array for name, array in parts.items()}
    return tensors


def learn_sentencepiece(text: str, joins: int) -> tuple[list[str], list[float], list[int]]:
    """A SentencePiece vocabulary (tokens, scores, types): bytes, letters, then learned joins."""
    symbols = list("▁" + text.replace(" ", "▁"))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    kinds = [2, 3, 3, *([6] * 256)]
    scores = [0.0] * len(tokens)
    learned: list[str] = []
    for _ in range(joins):
        pairs = Counter(itertools.pairwise(symbols))
        fresh = [(n, a + b) for (a, b), n in pairs.items() if a + b not in learned]
        count, joined = max(fresh)
        if count < 2:
            break
        learned.append(joined)
        symbols = _join(symbols, joined)
    letters = sorted(set("▁" + text.replace(" ", "▁")) - {"é"})
    pieces = [*learned, *letters]
    tokens += pieces
    scores += [-float(i) for i in range(len(pieces))]
    kinds += [1] * len(pieces)
    return tokens, scores, kinds


def _join(symbols: list[str], joined: str) -> list[str]:
    out: list[str] = []
    for symbol in symbols:
        if out and out[-1] + symbol == joined:
            out[-1] = joined
        else:
            out.append(symbol)
    return out
