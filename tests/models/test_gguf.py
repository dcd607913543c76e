"""GGUF files of the Llama architecture in every promised type; damaged ones are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.decoder.gguf_export import export_f32
from kvbench.decoder.gguf_file import GgufFile
from kvbench.decoder.model import Model, open_model
from kvbench.decoder.synthetic import SyntheticWeights
from kvbench.errors import KvbenchError, UsageError
from tests.models.gguf_files import SHAPE, write_gguf

# Block layout of each K-quant: bytes of a block, and where its float16 scales lie.
K_QUANTS = {
    Kind.Q2_K: (84, (80, 82)),
    Kind.Q3_K: (110, (108,)),
    Kind.Q4_K: (144, (0, 2)),
    Kind.Q5_K: (176, (0, 2)),
    Kind.Q6_K: (210, (208,)),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path / "cache"))


def k_quant_blocks(kind: Kind, rows: int, columns: int) -> Any:
    """Random blocks with sane scales: any bits are a valid K-quant but for its float16 fields."""
    size, scales = K_QUANTS[kind]
    rng = np.random.default_rng(int(kind))
    blocks = rng.integers(0, 256, (rows, columns // 256, size), dtype=np.uint8)
    for at in scales:
        blocks[:, :, at : at + 2] = np.float16([0.01]).view(np.uint8)
    return blocks.reshape(rows, -1)


def as_one(written: dict[str, Any], layer: int, *names: str) -> Any:
    return np.concatenate([written[f"blk.{layer}.{name}.weight"] for name in names])


def require_equal(model: Model, written: dict[str, Any], tied: bool) -> None:
    """Every weight of the model has exactly the bits of the file's tensors."""
    expected = {
        "embed": written["token_embd.weight"],
        "head": written["token_embd.weight" if tied else "output.weight"],
        "final_norm": written["output_norm.weight"],
    }
    for i in range(model.config.n_layers):
        expected[f"{i}.attn_norm"] = written[f"blk.{i}.attn_norm.weight"]
        expected[f"{i}.ffn_norm"] = written[f"blk.{i}.ffn_norm.weight"]
        expected[f"{i}.wqkv"] = as_one(written, i, "attn_q", "attn_k", "attn_v")
        expected[f"{i}.wo"] = as_one(written, i, "attn_output")
        expected[f"{i}.w_gate_up"] = as_one(written, i, "ffn_gate", "ffn_up")
        expected[f"{i}.w_down"] = as_one(written, i, "ffn_down")
    assert set(expected) == set(model.weights) == set(model.config.tensor_shapes())
    for name, array in model.weights.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
        assert array.shape == model.config.tensor_shapes()[name]
        assert array.dtype == np.float32 and array.flags.c_contiguous
        assert array.ctypes.data % 64 == 0 and not array.flags.writeable


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "kind",
    [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1],
)
def test_every_plain_type(tmp_path: Path, kind: Kind, tied: bool) -> None:
    path = tmp_path / "m.gguf"
    written = write_gguf(path, kind=kind, tied=tied)
    model = open_model(str(path))
    require_equal(model, written, tied)
    assert (model.weights["head"] is model.weights["embed"]) == tied == model.config.tied
    require_equal(open_model(str(path)), written, tied)  # from the cache


@pytest.mark.parametrize("kind", list(K_QUANTS))
def test_every_k_quant(tmp_path: Path, kind: Kind) -> None:
    path = tmp_path / "m.gguf"
    c = SHAPE
    shapes = {"attn_q": c.q_width, "attn_k": c.kv_width, "ffn_gate": c.d_ff, "ffn_down": c.d_model}
    raw = {
        f"blk.{i}.{name}.weight": (k_quant_blocks(kind, rows, 256), kind)
        for name, rows in shapes.items()
        for i in range(c.n_layers)
    }
    written = write_gguf(path, raw=raw)
    require_equal(open_model(str(path)), written, tied=False)


def test_float32_is_the_model_that_was_written(tmp_path: Path) -> None:
    """Rows q, k, v and gate, up lie in the promised order."""
    path = tmp_path / "m.gguf"
    write_gguf(path)
    made, model = SyntheticWeights(SHAPE, seed=5), open_model(str(path))
    for name in made:
        np.testing.assert_array_equal(model.weights[name], made[name], err_msg=name)
    assert model.config.rope_interleaved and model.config.context == SHAPE.context
    assert (model.config.n_heads, model.config.n_kv_heads) == (SHAPE.n_heads, SHAPE.n_kv_heads)


def test_the_float32_export_is_the_same_model(tmp_path: Path) -> None:
    source, target = tmp_path / "q.gguf", tmp_path / "f.gguf"
    write_gguf(source, kind=Kind.Q4_1, tied=True)
    export_f32(source, target)
    one, two = open_model(str(source)), open_model(str(target))
    assert replace(one.config, name="") == replace(two.config, name="") and one.digest != two.digest
    for name in one.weights:
        np.testing.assert_array_equal(one.weights[name], two.weights[name])
    assert {t.tensor_type for t in gguf.GGUFReader(target).tensors} == {Kind.F32}
    assert one.tokenizer is not None and two.tokenizer is not None
    assert one.tokenizer.encode("the thin 123") == two.tokenizer.encode("the thin 123")
    with pytest.raises(UsageError, match="exists"):
        export_f32(source, target)


def test_rope_frequencies(tmp_path: Path) -> None:
    """A file's own divisors, and linear scaling, both end in the configuration."""
    divisors = np.linspace(1, 8, 32, dtype=np.float32)
    own, linear = tmp_path / "own.gguf", tmp_path / "linear.gguf"
    write_gguf(own, extra={"rope_freqs.weight": divisors})
    write_gguf(linear, fields={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    plain = SHAPE.inverse_frequencies()
    expected = [f / d for f, d in zip(plain, divisors.tolist(), strict=True)]
    assert open_model(str(own)).config.inverse_frequencies() == pytest.approx(expected, rel=1e-12)
    quarter = [f / 4 for f in plain]
    assert open_model(str(linear)).config.inverse_frequencies() == pytest.approx(quarter)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"architecture": "gemma"},
            "architecture 'gemma' is not supported; allowed: llama, qwen2, qwen3",
        ),
        ({"fields": {"expert_count": 8}}, "mixture of experts"),
        ({"fields": {"block_count": None}}, "llama.block_count is missing"),
        ({"fields": {"attention.layer_norm_rms_epsilon": None}}, "rms_epsilon is missing"),
        ({"fields": {"attention.head_count": [4, 4]}}, "head_count is [4, 4]"),
        ({"fields": {"attention.head_count": 3}}, "3 is not a multiple of"),
        ({"fields": {"attention.head_count": 0}}, "n_heads = 0"),
        ({"fields": {"attention.head_count": 8, "attention.key_length": 64}}, "wqkv has 512 rows"),
        ({"fields": {"block_count": 1 << 31}}, "n_layers = 2147483648"),
        ({"fields": {"attention.value_length": 32}}, "values of another width"),
        ({"fields": {"rope.scaling.type": "yarn"}}, "rope scaling 'yarn'"),
        ({"fields": {"rope.dimension_count": 7}}, "rope_dim = 7"),
        ({"fields": {"block_count": 3}}, "has no tensor blk.2.attn_norm.weight"),
        ({"fields": {"block_count": 1}}, "tensor 'blk.1."),
        ({"fields": {"feed_forward_length": 128}}, "w_gate_up has 512 rows, not 256"),
        ({"fields": {"embedding_length": 128, "attention.key_length": 64}}, "has"),
        ({"drop": ("token_embd.weight",)}, "has no tensor token_embd.weight"),
        ({"drop": ("blk.1.ffn_up.weight",)}, "has no tensor blk.1.ffn_up.weight"),
        (
            {"extra": {"blk.0.attn_q.bias": np.zeros(256, np.float32)}},
            "attn_q.bias' is not supported",
        ),
    ],
)
def test_what_the_decoder_does_not_do_is_refused(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, **changes)
    with pytest.raises(UsageError) as caught:
        open_model(str(path))
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert not list((tmp_path / "cache").glob("weights/[!.]*"))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "m.gguf"
    write_gguf(path, kind=Kind.Q8_0)
    return path.read_bytes()


def open_or_refuse(path: Path) -> None:
    """Opens, or is refused in one line; nothing else, and not after an age."""
    try:
        file = GgufFile(path)
        for name in file.config.tensor_shapes():
            file.weight(name)
    except KvbenchError as error:
        assert "\n" not in str(error)


@settings(max_examples=60)
@given(data=st.data())
def test_a_file_cut_short_is_refused(
    tmp_path_factory: pytest.TempPathFactory, sound: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "m.gguf"
    header = min(len(sound) - 1, 16_000)
    length = data.draw(st.one_of(st.integers(0, header), st.integers(0, len(sound) - 33)))
    path.write_bytes(sound[:length])
    with pytest.raises(UsageError) as caught:
        GgufFile(path)
    assert "\n" not in str(caught.value)


@settings(max_examples=150)
@given(at=st.integers(0, 14_000), value=st.binary(min_size=1, max_size=8))
def test_a_damaged_header_never_ends_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, sound: bytes, at: int, value: bytes
) -> None:
    path = tmp_path_factory.mktemp("bits") / "m.gguf"
    path.write_bytes(sound[:at] + value + sound[at + len(value) :])
    open_or_refuse(path)


@pytest.mark.parametrize(
    "content", [b"", b"GGUF", b"PK\x03\x04" + bytes(100), b"GGUF" + b"\xff" * 99]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=str(path)):
        open_model(str(path))


@pytest.mark.parametrize(
    "ref", ["nothing", "shakespeare", "/absent/m.gguf", "absent.gguf", "", "."]
)
def test_names_that_are_no_model(ref: str) -> None:
    with pytest.raises(UsageError, match="model"):
        open_model(ref)
