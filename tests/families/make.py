"""Small random checkpoints of the three families, as safetensors folders and as GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from kvbench.decoder.weights import Array

VOCAB, WIDTH, HEADS, KV_HEADS, HEAD, FFN, LAYERS = 259, 64, 4, 2, 32, 96, 2

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}


def config(family: str, **changes: Any) -> dict[str, Any]:
    names = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    # Qwen2 has no head_dim of its own: heads of 32 need a model of 128 there.
    return {
        "architectures": [names[family]],
        "model_type": family,
        "hidden_size": HEADS * HEAD if family == "qwen2" else WIDTH,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        **({} if family == "qwen2" else {"head_dim": HEAD}),
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        **changes,
    }


def tensors(raw: dict[str, Any], seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    width, family = raw["hidden_size"], raw["model_type"]
    q, kv = HEADS * HEAD, KV_HEADS * HEAD

    def draw(*shape: int, scale: float) -> Array:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    def near_one(n: int) -> Array:
        return (1 + 0.2 * rng.standard_normal(n)).astype(np.float32)

    found = {
        "model.embed_tokens.weight": draw(VOCAB, width, scale=1.0),
        "model.norm.weight": near_one(width),
    }
    if not raw["tie_word_embeddings"]:
        found["lm_head.weight"] = draw(VOCAB, width, scale=3.0 / width**0.5)
    spread = 1.7 / width**0.5
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        found[at + "input_layernorm.weight"] = near_one(width)
        found[at + "post_attention_layernorm.weight"] = near_one(width)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            found[at + f"self_attn.{name}_proj.weight"] = draw(rows, width, scale=spread)
            if family == "qwen2":
                found[at + f"self_attn.{name}_proj.bias"] = draw(rows, scale=0.5)
        if family == "qwen3":
            found[at + "self_attn.q_norm.weight"] = near_one(HEAD)
            found[at + "self_attn.k_norm.weight"] = near_one(HEAD)
        found[at + "self_attn.o_proj.weight"] = draw(width, q, scale=1 / q**0.5)
        found[at + "mlp.gate_proj.weight"] = draw(FFN, width, scale=spread)
        found[at + "mlp.up_proj.weight"] = draw(FFN, width, scale=spread)
        found[at + "mlp.down_proj.weight"] = draw(width, FFN, scale=1 / FFN**0.5)
    return found


def write_checkpoint(folder: Path, raw: dict[str, Any], *, shards: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    found = tensors(raw)
    if shards == 1:
        save_file(found, folder / "model.safetensors")
        return folder
    names = sorted(found)
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[number::shards]
        save_file({name: found[name] for name in mine}, folder / file)
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_gguf(path: Path, raw: dict[str, Any]) -> Path:
    """The same weights as a GGUF file, as llama.cpp's converter lays them out."""
    import gguf

    from tests.peers.tiny_gguf import byte_alphabet

    family = raw["model_type"]
    writer = gguf.GGUFWriter(str(path), family)
    writer.add_name("tiny")
    writer.add_context_length(raw["max_position_embeddings"])
    writer.add_embedding_length(raw["hidden_size"])
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(raw["rms_norm_eps"])
    writer.add_rope_freq_base(raw["rope_theta"])
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*byte_alphabet(), "ab", "<|start|>", "<|end|>"])
    writer.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_add_bos_token(False)
    for name, data in tensors(raw).items():
        writer.add_tensor(_gguf_name(name), _permuted(name, data, family))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_RENAMED = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        layer, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{layer}.{_RENAMED[part]}.{kind}"
    return f"{_RENAMED[stem]}.{kind}"


def _permuted(name: str, data: Array, family: str) -> Array:
    """Llama's q and k rows are stored so that rotary pairs are adjacent."""
    heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2])
    if family != "llama" or heads is None:
        return data
    halves = data.reshape(heads, 2, HEAD // 2, -1).swapaxes(1, 2)
    return np.ascontiguousarray(halves.reshape(data.shape))
