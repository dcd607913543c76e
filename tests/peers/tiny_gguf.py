"""A tiny random Llama-family GGUF with a byte-level tokenizer, for real engines to serve."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def byte_alphabet() -> list[str]:
    """The 256 printable stand-ins for bytes that byte-level BPE tokenizers use."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(code if code in plain else next(others)) for code in range(256)]


def write_tiny_gguf(
    path: Path,
    *,
    seed: int = 0,
    layers: int = 2,
    width: int = 64,
    heads: int = 2,
    kv_heads: int = 1,
    ffn: int = 128,
    context: int = 65536,
) -> Path:
    """Weights are drawn widely enough that greedy text depends on the whole prompt."""
    rng = np.random.default_rng(seed)
    tokens = [*byte_alphabet(), "ab", "<|start|>", "<|end|>"]
    head = width // heads
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_name("tiny")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(head)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = [gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL] * 2
    writer.add_token_types(kinds)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_add_bos_token(False)

    def tensor(name: str, *shape: int, scale: float) -> None:
        data = rng.standard_normal(shape).astype(np.float32) * np.float32(scale)
        writer.add_tensor(name, data)

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(width, np.float32))

    tensor("token_embd.weight", len(tokens), width, scale=1.0)
    tensor("output.weight", len(tokens), width, scale=4.0 / width**0.5)
    norm("output_norm.weight")
    spread = 1.7 / width**0.5
    for layer in range(layers):
        norm(f"blk.{layer}.attn_norm.weight")
        norm(f"blk.{layer}.ffn_norm.weight")
        tensor(f"blk.{layer}.attn_q.weight", heads * head, width, scale=spread)
        tensor(f"blk.{layer}.attn_k.weight", kv_heads * head, width, scale=spread)
        tensor(f"blk.{layer}.attn_v.weight", kv_heads * head, width, scale=spread)
        tensor(f"blk.{layer}.attn_output.weight", width, heads * head, scale=spread)
        tensor(f"blk.{layer}.ffn_gate.weight", ffn, width, scale=spread)
        tensor(f"blk.{layer}.ffn_up.weight", ffn, width, scale=spread)
        tensor(f"blk.{layer}.ffn_down.weight", width, ffn, scale=1.0 / ffn**0.5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
