"""The NumPy kernels: right against float64, and the same bits whatever the batch and the window."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gates.transport.harness import model_of
from kvbench.decoder.engine import Engine
from kvbench.decoder.readback import StepOutput
from kvbench.decoder.settings import parse
from kvbench.device.kvtypes import kv_type
from kvbench.errors import SettingError
from tests.models.naive import NaiveDecoder

TINY = "synthetic:tiny,layers=3"


def _decode(prompts: list[list[int]], steps: int, **settings: object) -> list[list[np.ndarray]]:
    """Logits of each sequence's steps; all sequences decode together."""
    model = model_of(TINY)
    out: list[list[np.ndarray]] = [[] for _ in prompts]

    def sink(step: StepOutput) -> None:
        for sequence, row in enumerate(step.logits):
            out[sequence].append(row.copy())

    capacity = max(map(len, prompts)) + steps
    with Engine(model, parse(settings), len(prompts), capacity) as engine:
        for sequence, prompt in enumerate(prompts):
            engine.prefill(sequence, prompt[:-1])
        engine.generate({s: p[-1] for s, p in enumerate(prompts)}, steps, sink)
    return out


def _prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 512, length).tolist()  # type: ignore[no-any-return]


def test_against_float64() -> None:
    """Logits within float16's KV error of a plain float64 forward pass, prompts over two tiles."""
    prompt = _prompt(0, 90)
    (steps,) = _decode([prompt], 4)
    naive = NaiveDecoder(model_of(TINY))
    for token in prompt[:-1]:
        naive.step(token)
    token = prompt[-1]
    for row in steps:
        want = naive.step(token)
        assert np.linalg.norm(row - want) / np.linalg.norm(want) < 5e-3
        token = int(row.argmax())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"depth": 1},
        {"depth": 2, "tail": "host"},
        {"resident": True},
        {"unified": True},
        {"depth": 1, "graphs": True},
        {"row_multiple": 256, "depth": 1},
        {"devices": 3, "depth": 1},
    ],
)
def test_a_row_alone_and_in_company(settings: dict[str, object]) -> None:
    """Batch- and chunk-invariance: a sequence's bits do not depend on others or on the window."""
    prompts = [_prompt(seed, length) for seed, length in ((1, 70), (2, 9), (3, 33), (4, 64))]
    together = _decode(prompts, 5, **settings)
    for prompt, rows in zip(prompts, together, strict=True):
        (alone,) = _decode([prompt], 5)
        for a, b in zip(alone, rows, strict=True):
            assert a.tobytes() == b.tobytes()


@given(st.integers(0, 1 << 30), st.sampled_from(["f16", "q8_0", "q4_0"]), st.integers(1, 9))
def test_rows_encode_and_decode(seed: int, name: str, n: int) -> None:
    """H7, H8: within the format's step; the padding is not written; rows are whole 16 bytes."""
    codec = kv_type(name, n_kv_heads=3, head_dim=64)
    rows = np.random.default_rng(seed).standard_normal((n, 192)).astype(np.float32)
    raw = np.full((n, codec.pitch), 7, np.uint8)
    codec.encode(rows, raw)
    assert codec.pitch % 16 == 0 and (raw[:, codec.row_bytes :] == 7).all()
    back = np.empty_like(rows)
    codec.decode(raw, back)
    largest = np.abs(rows).reshape(n, -1, 32).max(axis=2, keepdims=True).repeat(32, 2)
    step = {"f16": 2.0**-11, "q8_0": 0.6 / 127, "q4_0": 1.01 / 8}[name]
    assert (np.abs(rows - back) <= step * largest.reshape(n, -1) + 1e-6).all()
    again = np.zeros_like(raw)
    codec.encode(rows, again)
    assert (again[:, : codec.row_bytes] == raw[:, : codec.row_bytes]).all()


def test_quantised_formats_are_ggmls() -> None:
    """Blocks as the gguf package reads them."""
    from gguf import GGMLQuantizationType, dequantize

    rows = np.random.default_rng(5).standard_normal((4, 256)).astype(np.float32)
    for name, kind in (("q8_0", GGMLQuantizationType.Q8_0), ("q4_0", GGMLQuantizationType.Q4_0)):
        codec = kv_type(name, n_kv_heads=4, head_dim=64)
        raw, back = np.zeros((4, codec.pitch), np.uint8), np.empty_like(rows)
        codec.encode(rows, raw)
        codec.decode(raw, back)
        assert (dequantize(raw[:, : codec.row_bytes], kind) == back).all()


def test_a_head_that_blocks_do_not_fit() -> None:
    """Refused with the head's size, the block and a way out."""
    with pytest.raises(SettingError, match="head of 80 values is no multiple of the block of 32"):
        kv_type("q8_0", n_kv_heads=2, head_dim=80)
    with pytest.raises(SettingError, match="f16, q8_0, q4_0"):
        kv_type("q5_1", n_kv_heads=2, head_dim=64)


def test_padding_is_part_of_the_window() -> None:
    """T5: six blocks of q8_0 take eight: the allocated row is larger than the logical one."""
    codec = kv_type("q8_0", n_kv_heads=3, head_dim=64)
    assert (codec.row_bytes, codec.pitch) == (204, 272)


def test_every_half_decodes_exactly() -> None:
    """All 65,536 float16 values, subnormals, infinities and NaN included, as NumPy casts them."""
    every = np.arange(1 << 16, dtype=np.uint16)
    codec = kv_type("f16", n_kv_heads=1, head_dim=64)
    for part in (every, every[(every & 0x7C00) != 0x7C00]):
        rows = np.ascontiguousarray(part[: len(part) // 64 * 64].reshape(-1, 64))
        out = np.empty(rows.shape, np.float32)
        codec.decode(rows.view(np.uint8), out)
        want = rows.view(np.float16).astype(np.float32)
        assert out[~np.isnan(want)].tobytes() == want[~np.isnan(want)].tobytes()
        assert np.isnan(out[np.isnan(want)]).all()
