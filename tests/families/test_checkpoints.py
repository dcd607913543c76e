"""Safetensors checkpoints and GGUF files of Llama, Qwen2 and Qwen3 in the reference decoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvbench.decoder.model import open_model
from kvbench.decoder.session import DecodeTask, run_task
from kvbench.decoder.settings import DecoderSettings
from kvbench.errors import UsageError
from tests.families.make import LLAMA3, config, write_checkpoint, write_gguf
from tests.peers.arms import NO_LLAMA, NO_TORCH

FAMILIES = ("llama", "qwen2", "qwen3")
PROMPTS = [[(i * 37 + j * j * 11) % 256 for j in range(40 + 13 * i)] for i in range(3)]
STEPS = 24
END = 258
KV_ROUNDING = 0.03
"""Logits: the decoder keeps K and V in f16, the peer in f32. A wrong rotation is off by units."""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path / "cache"))


def decoded(ref: Path, depth: int = 0, teacher: list[list[int]] | None = None) -> Any:
    task = DecodeTask(prompts=PROMPTS, generate=STEPS, detail=True, teacher=teacher)
    return run_task(open_model(str(ref)), DecoderSettings(depth=depth), task)


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoint_and_gguf_of_the_same_weights_agree(tmp_path: Path, family: str) -> None:
    raw = config(family)
    one = decoded(write_checkpoint(tmp_path / "hf", raw))
    other = decoded(write_gguf(tmp_path / "m.gguf", raw))
    assert one.tokens == other.tokens
    assert len({token for row in one.tokens for token in row}) > 10
    for a, b in zip(one.top2, other.top2, strict=True):
        np.testing.assert_allclose([p[1] for p in a], [p[1] for p in b], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_pipelined_path_is_exact_for_every_family(tmp_path: Path, family: str) -> None:
    folder = write_checkpoint(tmp_path / "hf", config(family))
    ordered, ahead = decoded(folder), decoded(folder, depth=1)
    assert ordered.result.hashes == ahead.result.hashes


@pytest.mark.peer
@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_against_llama_cpp(tmp_path: Path, family: str) -> None:
    """Greedy tokens of an F32 file equal llama.cpp's, with an F32 cache and its own server."""
    pytest.importorskip("xllamacpp", reason=NO_LLAMA)
    from kvbench.engines.arm import Arm
    from kvbench.engines.protocol import Reply, Task
    from kvbench.engines.supervisor import run_once

    path = write_gguf(tmp_path / "m.gguf", config(family))
    settings = {
        "threads": 1,
        "context": 1024,
        "parallel": 3,
        "args": ["-ctk", "f32", "-ctv", "f32"],
    }
    arm = Arm(name="peer", engine="xllamacpp", model=str(path), settings=settings)
    peer = run_once(arm, Task(prompts=[list(p) for p in PROMPTS], generate=STEPS, detail=True))
    assert isinstance(peer.outcome, Reply), peer
    own = decoded(path)
    for mine, theirs, top2 in zip(own.tokens, peer.outcome.tokens or [], own.top2, strict=True):
        for position, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            margin = top2[position][1] - top2[position][3]
            if a == END:  # the server was told to ignore it, and goes on with another token
                break
            assert a == b, f"position {position}, margin {margin}"


@pytest.mark.optin
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"rope_scaling": LLAMA3}),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}),
        ("qwen2", {}),
        ("qwen3", {}),
    ],
)
def test_checkpoints_against_transformers(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    """Teacher-forced logits of every position agree with the family's own implementation."""
    torch = pytest.importorskip("torch", reason=NO_TORCH)
    transformers = pytest.importorskip("transformers", reason=NO_TORCH)
    folder = write_checkpoint(tmp_path / "hf", config(family, **changes))
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    own = decoded(folder)
    for prompt, tokens, top2 in zip(PROMPTS, own.tokens, own.top2, strict=True):
        with torch.no_grad():
            logits = peer(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].numpy()
        for row, pair in zip(logits, top2, strict=True):
            np.testing.assert_allclose(
                row[[pair[0], pair[2]]], [pair[1], pair[3]], atol=KV_ROUNDING
            )
            assert row.max() <= pair[1] + KV_ROUNDING


def test_shards_are_one_model(tmp_path: Path) -> None:
    raw = config("llama")
    whole = decoded(write_checkpoint(tmp_path / "a", raw))
    parts = decoded(write_checkpoint(tmp_path / "b", raw, shards=3))
    assert whole.result.hashes["logits"] == parts.result.hashes["logits"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_hidden_layers": 3}, "no tensor"),
        ({"num_hidden_layers": 1}, "layers.1"),
        ({"num_hidden_layers": 10**9}, "n_layers"),
        ({"num_attention_heads": "4"}, "num_attention_heads"),
        ({"hidden_size": 10**12}, "d_model"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": "x"}}, "factor"),
        ({"use_sliding_window": True}, "sliding"),
        ({"attention_bias": True}, "attention_bias"),
        ({"vocab_size": 999}, "embed"),
    ],
)
def test_a_configuration_that_does_not_fit_is_one_line(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    folder = write_checkpoint(tmp_path / "hf", config("llama"))
    (folder / "config.json").write_text(json.dumps(config("llama") | changes))
    with pytest.raises(UsageError, match=words) as error:
        decoded(folder)
    assert "\n" not in str(error.value)


def header(entries: dict[str, Any], data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str = "F32", shape: tuple[int, ...] = (1,), at: tuple[int, int] = (0, 4)) -> Any:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(at)}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "header"),
        (b"\xff" * 8, "header"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "header"),
        (header({})[:-1] + b"\xff", "JSON"),
        (b"\x02\0\0\0\0\0\0\0[]", "object"),
        (header({"a": 3}), "'a'"),
        (header({"a": entry()}), "truncated"),
        (header({"a": entry(at=(0, 8))}, bytes(8)), "bytes for shape"),
        (header({"a": entry(shape=(2**40, 2**40))}, bytes(4)), "bytes for shape"),
        (header({"a": entry(at=(-4, 0))}, bytes(4)), "'a'"),
        (header({"a": entry(), "b": entry()}, bytes(4)), "overlaps"),
        (header({"a": entry("I64", (1,), (0, 8))}, bytes(8)), "I64"),
        (header({"a": entry()}, bytes(4)), "no tensor"),
        (b"[" * 10, "header"),
    ],
)
def test_a_malformed_file_is_one_line_and_no_giant_allocation(
    tmp_path: Path, content: bytes, words: str
) -> None:
    folder = write_checkpoint(tmp_path / "hf", config("llama"))
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match=words) as error:
        decoded(folder)
    assert "\n" not in str(error.value)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "hf", config("qwen3"))
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for length in range(0, len(whole), len(whole) // 23):
        file.write_bytes(whole[:length])
        with pytest.raises(UsageError):
            decoded(folder)


def test_pickles_are_refused(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "hf", config("llama"))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match="pickle"):
        decoded(folder)


def test_an_index_must_stay_in_its_folder(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "hf", config("llama"), shards=2)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../../etc/passwd"}}))
    with pytest.raises(UsageError, match="outside"):
        decoded(folder)
