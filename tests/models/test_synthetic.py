"""Synthetic models: any shape, seeded, no files."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.decoder import synthetic
from kvbench.decoder.config import ModelConfig
from kvbench.decoder.model import open_model
from kvbench.errors import UsageError
from tests.models.naive import NaiveDecoder


def fingerprint(ref: str) -> str:
    sha = hashlib.sha256()
    for name, array in open_model(ref).weights.items():
        sha.update(name.encode())
        sha.update(array.astype("<f4").tobytes())
    return sha.hexdigest()


def test_seeded_weights_are_pinned() -> None:
    """The same seed gives the same bits on every machine: pinned, so another machine checks it."""
    assert fingerprint("synthetic:tiny,seed=7") == PINNED


def test_another_process_draws_the_same_weights() -> None:
    code = (
        "from tests.models.test_synthetic import fingerprint;"
        "print(fingerprint('synthetic:tiny-hybrid,seed=3'))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == fingerprint("synthetic:tiny-hybrid,seed=3")


def test_seed_changes_every_matrix_and_the_digest() -> None:
    one, two = open_model("synthetic:tiny,seed=1"), open_model("synthetic:tiny,seed=2")
    assert one.digest != two.digest
    assert not any(np.array_equal(one.weights[name], two.weights[name]) for name in one.weights)


@settings(max_examples=25, deadline=None)
@given(
    layers=st.integers(1, 5),
    groups=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    half_head=st.integers(1, 9),
    every=st.integers(1, 4),
    seed=st.integers(0, 10**18 - 1),
)
def test_any_shape(
    layers: int, groups: int, kv_heads: int, half_head: int, every: int, seed: int
) -> None:
    """Every tensor has the listed shape, is float32, aligned, read-only and finite."""
    model = open_model(
        f"synthetic:tiny,layers={layers},heads={groups * kv_heads},kv_heads={kv_heads},"
        f"head_dim={2 * half_head},d_model=24,d_ff=20,vocab=33,"
        f"attention_every={every},seed={seed}"
    )
    assert len(model.config.attention_layers) == layers // every
    for name, shape in model.config.tensor_shapes().items():
        array = model.weights[name]
        assert array.shape == shape and array.dtype == np.float32
        assert array.flags.c_contiguous and array.ctypes.data % 64 == 0
        assert not array.flags.writeable and np.isfinite(array).all()
    assert set(model.weights) == set(model.config.tensor_shapes())


@pytest.mark.parametrize(
    ("preset", "attention", "kv_width"),
    [("dense-8b", 32, 1024), ("hybrid-27b", 16, 1024), ("slice-70b", 8, 1024)],
)
def test_large_shapes_cost_nothing_until_asked(preset: str, attention: int, kv_width: int) -> None:
    model = open_model(f"synthetic:{preset}")
    assert len(model.config.attention_layers) == attention
    assert model.config.kv_width == kv_width


def test_weights_that_cannot_fit_are_refused() -> None:
    with pytest.raises(UsageError, match=r"needs .* GiB of host memory"):
        open_model("synthetic:dense-8b,layers=4000").weights["final_norm"]


@pytest.mark.parametrize(
    "ref",
    [
        "synthetic:huge",
        "synthetic:tiny,layers",
        "synthetic:tiny,layers=",
        "synthetic:tiny,layers=-1",
        "synthetic:tiny,layers=0",
        "synthetic:tiny,layers=100000000000000000",
        "synthetic:tiny,vocab=100000000000000000",
        "synthetic:tiny,layers=2.5",
        "synthetic:tiny,seed=x",
        "synthetic:tiny,colour=3",
        "synthetic:tiny,heads=3",
        "synthetic:tiny,",
        "synthetic:tiny,layers=٣",
    ],
)
def test_unkind_references_get_one_line(ref: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_model(ref)
    assert "\n" not in str(caught.value) and "tiny" in str(caught.value)


def test_uniform_draws_have_unit_variance() -> None:
    values = synthetic.uniform(1, "x", (1 << 16,))
    assert abs(float(values.mean())) < 0.02 and abs(float(values.std()) - 1.0) < 0.01


def test_config_refuses_impossible_heads() -> None:
    with pytest.raises(UsageError, match="multiple"):
        ModelConfig("x", 1, 8, 3, 2, 4, 8, 16, 32)


PINNED = "13e925d94510a222ea8ddc40e1a77c5c5ece1bcdefc1f96365df45f6a09def56"


@pytest.mark.parametrize("preset", ["tiny", "tiny-hybrid"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_greedy_output_does_not_collapse(preset: str, seed: int) -> None:
    """FAULTS.md: output that settles on one token blinds a text hash."""
    model = open_model(f"synthetic:{preset},seed={seed}")
    prompt = np.random.default_rng(seed).integers(0, model.config.vocab_size, 48).tolist()
    tokens = NaiveDecoder(model).greedy(prompt, 160)
    late = tokens[80:]
    longest = max(len(list(run)) for _, run in itertools.groupby(tokens))
    assert len(set(late)) >= 40 and longest <= 4
