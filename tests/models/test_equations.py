"""The decoder computes the model's equations: against the same in float64, for any shape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.decoder.model import Model, open_model
from kvbench.decoder.session import DecodeTask, run_task
from kvbench.decoder.settings import DecoderSettings
from tests.models.naive import NaiveDecoder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path / "cache"))


def require_equations(model: Model, kv: str, tolerance: float, prompt: list[int]) -> None:
    """Along the decoder's own tokens its two best logits are the equations', to a tolerance."""
    task = DecodeTask([prompt], 12, detail=True, snapshots=False)
    run = run_task(model, DecoderSettings(kv_type=kv, depth=1), task)
    naive = NaiveDecoder(model)
    for token in prompt:
        exact = naive.step(token)
    for token, (best, high, second, low) in zip(run.tokens[0], run.top2[0], strict=True):
        assert token == best
        assert abs(exact[best] - high) < tolerance and abs(exact[second] - low) < tolerance
        assert exact.max() - exact[best] < 2 * tolerance
        exact = naive.step(token)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layers=st.integers(1, 4),
    groups=st.integers(1, 3),
    kv_heads=st.integers(1, 2),
    head_dim=st.sampled_from([8, 16, 32]),
    every=st.integers(1, 3),
    interleaved=st.booleans(),
    partial=st.booleans(),
    stretched=st.booleans(),
    length=st.integers(1, 150),
    seed=st.integers(0, 1000),
)
def test_any_shape(
    layers: int,
    groups: int,
    kv_heads: int,
    head_dim: int,
    every: int,
    interleaved: bool,
    partial: bool,
    stretched: bool,
    length: int,
    seed: int,
) -> None:
    """Hybrid or not, both orders of rotary pairs, partial and stretched rotation."""
    model = open_model(
        f"synthetic:tiny,layers={layers},heads={groups * kv_heads},kv_heads={kv_heads},"
        f"head_dim={head_dim},attention_every={every},seed={seed}"
    )
    rope_dim = head_dim // 2 if partial else head_dim
    factors = tuple(1.0 + 0.25 * i for i in range(rope_dim // 2)) if stretched else ()
    shaped = replace(
        model.config, rope_interleaved=interleaved, rope_dim=rope_dim, rope_factors=factors
    )
    model = replace(model, config=shaped, digest=f"{seed} {shaped}")
    prompt = np.random.default_rng(seed).integers(0, 512, length).tolist()
    require_equations(model, "f32", 1e-3, prompt)


def test_half_precision_history_costs_little() -> None:
    model = open_model("synthetic:tiny,layers=4,seed=11")
    prompt = np.random.default_rng(3).integers(0, 512, 200).tolist()
    require_equations(model, "f16", 5e-2, prompt)
