"""transformers' offloaded cache and this decoder, side by side: same shape, weights and prompt.

    python -m tests.cuda.bench_transformers [CONTEXT] [LAYERS]

A dense 8B shape in float16. Each arm prefills the same random prompt, then decodes greedily. An
arm's output is compared with the same program's device-resident cache, twice over.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

import numpy as np

STEPS = 32


def hf_model(config: Any, held: Any) -> Any:
    """A LlamaForCausalLM over the very weights that ``held`` keeps on the device."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=config.d_model, intermediate_size=config.d_ff,
        num_hidden_layers=config.n_layers, num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_kv_heads, head_dim=config.head_dim,
        max_position_embeddings=config.context, rms_norm_eps=config.rms_eps,
        rope_theta=config.rope_theta, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(shape)

    def matrix(name: str) -> Any:
        m = held[name]
        return torch.from_dlpack(m.data.raw).view(torch.float16).reshape(m.n, m.k)

    def gain(name: str) -> Any:
        return torch.from_dlpack(held[name].raw).view(torch.float32).to(torch.float16)

    state = {
        "model.embed_tokens.weight": matrix("embed"),
        "model.norm.weight": gain("final_norm"),
        "lm_head.weight": matrix("head"),
    }
    q, kv, f = config.q_width, config.kv_width, config.d_ff
    for i in range(config.n_layers):
        at = f"model.layers.{i}."
        wqkv, both = matrix(f"{i}.wqkv"), matrix(f"{i}.w_gate_up")
        state |= {
            at + "input_layernorm.weight": gain(f"{i}.attn_norm"),
            at + "post_attention_layernorm.weight": gain(f"{i}.ffn_norm"),
            at + "self_attn.q_proj.weight": wqkv[:q],
            at + "self_attn.k_proj.weight": wqkv[q : q + kv],
            at + "self_attn.v_proj.weight": wqkv[q + kv :],
            at + "self_attn.o_proj.weight": matrix(f"{i}.wo"),
            at + "mlp.gate_proj.weight": both[:f],
            at + "mlp.up_proj.weight": both[f:],
            at + "mlp.down_proj.weight": matrix(f"{i}.w_down"),
        }
    model.load_state_dict(state, assign=True)
    rotary = type(model.model.rotary_emb)(shape, device="cuda")
    model.model.rotary_emb = rotary
    return model.eval()


def hf_arm(model: Any, prompt: list[int], offload: bool) -> dict[str, Any]:
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config, offloading=offload)
    ids = torch.tensor([prompt], device="cuda")
    torch.cuda.reset_peak_memory_stats()
    with torch.inference_mode():
        begin = time.perf_counter()
        for start in range(0, len(prompt), 2048):
            out = model(ids[:, start : start + 2048], past_key_values=cache, logits_to_keep=1)
        torch.cuda.synchronize()
        prefill = time.perf_counter() - begin
        token = out.logits[:, -1:].argmax(-1)
        tokens, times = [int(token)], []
        for _ in range(STEPS):
            begin = time.perf_counter()
            out = model(token, past_key_values=cache)
            token = out.logits[:, -1:].argmax(-1)
            tokens.append(int(token))
            times.append(time.perf_counter() - begin)
    return {
        "tokens": tokens,
        "token_ms": round(float(np.median(times[4:])) * 1e3, 3),
        "prefill_tok_s": round(len(prompt) / prefill),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def main() -> None:
    context = int(sys.argv[1]) if len(sys.argv) > 1 else 16384
    layers = sys.argv[2] if len(sys.argv) > 2 else "32"
    from kvbench.decoder.device_weights import device_weights
    from kvbench.decoder.engine import Engine
    from kvbench.decoder.model import open_model
    from kvbench.decoder.settings import DecoderSettings
    from kvbench.device.cuda.device import CudaDevice

    opened = open_model(f"synthetic:dense-8b,layers={layers}")
    config = opened.config
    prompt = np.random.default_rng(3).integers(0, config.vocab_size, context - 64).tolist()

    def show(name: str, found: dict[str, Any], like: list[int] | None) -> None:
        tokens = found.pop("tokens")
        agree = None
        if like is not None:
            agree = next((i for i, (a, b) in enumerate(zip(tokens, like, strict=False)) if a != b),
                         len(like))  # fmt: skip
        verdict = {"exact": tokens == like, "first_difference": agree, "tokens": tokens[:8]}
        print(json.dumps({"arm": name, "context": context, **found, **verdict}), flush=True)

    ours: list[int] | None = None
    for name, arm in (
        ("resident", {"resident": True}), ("depth1", {"depth": 1}), ("ordered", {}),
        ("direct", {"direct": True}),
    ):  # fmt: skip
        settings = DecoderSettings(
            device="cuda", weight_type="f16", graphs=True, budget_mib=0, row_multiple=512,
            **arm,
        )  # fmt: skip
        with Engine(opened, settings, 1, context + 64) as engine:
            begin = time.perf_counter()
            engine.prefill(0, prompt[:-1])
            engine.drain("prefill")
            prefill = time.perf_counter() - begin
            tokens: list[int] = []
            stamps: list[float] = []

            def sink(step: Any, tokens: list[int] = tokens, stamps: list[float] = stamps) -> None:
                tokens.append(int(step.tokens[0]))
                stamps.append(time.perf_counter())

            engine.generate({0: prompt[-1]}, STEPS + 1, sink)
            found: dict[str, Any] = {
                "tokens": tokens,
                "token_ms": round((stamps[-1] - stamps[8]) / (STEPS - 8) * 1e3, 3),
                "prefill_tok_s": round(len(prompt) / prefill),
                "peak_gib": round(engine.devices[0].peak_bytes["device"] / 2**30, 2),
            }
        ours = ours or list(tokens)
        show(f"kvbench {name}", found, ours)
    with CudaDevice("hf") as device:
        held = device_weights(config, opened.weights, device, "f16", range(config.n_layers))
        model = hf_model(config, held)
        plain: list[int] | None = None
        for name, offload in (
            ("warm-up", False),
            ("resident", False),
            ("offloaded", True),
            ("offloaded again", True),
        ):
            found = hf_arm(model, prompt, offload)
            if name == "warm-up":
                continue
            if plain is None:
                plain = list(found["tokens"])
                common = next((i for i, (a, b) in enumerate(zip(plain, ours or [], strict=False))
                               if a != b), STEPS + 1)  # fmt: skip
                print(json.dumps({"tokens in common, transformers and kvbench": common}))
            show(f"transformers {name}", found, plain)
            gc.collect()


if __name__ == "__main__":
    main()
