"""The whole decoder on a GPU: every arm gives the bytes of the resident one, faults do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvbench.decoder.engine import Engine
from kvbench.decoder.faults import find
from kvbench.decoder.model import open_model
from kvbench.decoder.seeded import SeededHistory
from kvbench.decoder.session import DecodeRun, DecodeTask, run_task
from kvbench.decoder.settings import DecoderSettings
from kvbench.device.cuda.device import CudaDevice

pytestmark = pytest.mark.cuda

SMALL = "synthetic:small,layers=4,head_dim=64"
HYBRID = "synthetic:small,layers=6,head_dim=64,attention_every=2"
PROMPT = 200
STEPS = 12


def run(model: str, *, sequences: int = 2, **settings: Any) -> DecodeRun:
    opened = open_model(model)
    rng = np.random.default_rng(5)
    prompts = [
        rng.integers(0, opened.config.vocab_size, PROMPT + 17 * i).tolist()
        for i in range(sequences)
    ]
    chosen = DecoderSettings(device="cuda", audit=True, poison=True, **settings)
    return run_task(opened, chosen, DecodeTask(prompts, STEPS, snapshots=False))


def same(a: DecodeRun, b: DecodeRun) -> bool:
    keys = ("tokens", "logits", "audit")
    return all(a.result.hashes[k] == b.result.hashes[k] for k in keys)


ARMS: list[dict[str, Any]] = [
    {"depth": 0},
    {"depth": 1},
    {"depth": 2},
    {"depth": 4},
    {"depth": 1, "boundary": "wait"},
    {"depth": 1, "tail": "host"},
    {"depth": 1, "loop": "blocking", "waits": "stock"},
    {"depth": 1, "graphs": True},
    {"depth": 2, "graphs": True, "tail": "host"},
    {"depth": 0, "graphs": True},
    {"direct": True},
    {"direct": True, "graphs": True},
    {"depth": 1, "unified": True},
    {"depth": 1, "pinned": False},
    {"depth": 1, "device_layers": 1},
    {"depth": 1, "waits": "elided"},
    {"depth": 1, "delays": "slow_transfer"},
    {"depth": 1, "delays": "slow_compute"},
    {"depth": 1, "delays": "slow_store", "graphs": True},
    {"depth": 1, "delays": "jitter", "graphs": True},
]


@pytest.fixture(scope="module")
def resident() -> dict[tuple[str, str], DecodeRun]:
    return {}


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("arm", ARMS, ids=lambda a: ",".join(f"{k}={v}" for k, v in a.items()))
def test_arms_are_exact(
    device: CudaDevice, resident: dict[tuple[str, str], DecodeRun], kv_type: Any, arm: Any
) -> None:
    """Tokens, logits and every byte that attention read (with row multiples of both arms)."""
    key = (SMALL, kv_type)
    if key not in resident:
        resident[key] = run(SMALL, resident=True, kv_type=kv_type)
    got = run(SMALL, kv_type=kv_type, **arm)
    assert got.tokens == resident[key].tokens
    assert same(got, resident[key])
    assert len({t for row in got.tokens for t in row}) > STEPS // 2, "blind: few tokens"


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("graphs", [False, True])
def test_hybrid(device: CudaDevice, offload: bool, graphs: bool) -> None:
    """T3: recurrent layers, their state on the device or rewritten whole each token."""
    plain = run(HYBRID, resident=True, weight_type="f16")
    got = run(HYBRID, depth=1, graphs=graphs, offload_state=offload, weight_type="f16")
    assert same(got, plain)


def test_two_logical_devices(device: CudaDevice) -> None:
    """H18: layers split over two devices (contexts on one GPU where there is but one)."""
    plain = run(SMALL, resident=True)
    assert same(run(SMALL, depth=1, devices=2), plain)


def test_sequences_do_not_see_each_other(device: CudaDevice) -> None:
    """A sequence's logits are those it has alone."""
    both = run(SMALL, depth=1, graphs=True)
    alone = run(SMALL, sequences=1, depth=1)
    assert both.sequence_hashes[0] == alone.sequence_hashes[0]


def test_greedy_tokens_are_the_cpus(device: CudaDevice) -> None:
    """f32 weights: the cpu device's tokens, but where the two best logits all but tie."""
    opened = open_model(SMALL)
    rng = np.random.default_rng(5)
    task = DecodeTask(
        [rng.integers(0, opened.config.vocab_size, PROMPT).tolist()], 24, detail=True,
        snapshots=False,
    )  # fmt: skip
    cpu = run_task(opened, DecoderSettings(), task)
    cuda = run_task(opened, DecoderSettings(device="cuda"), task)
    same = 0
    for mine, theirs, top2 in zip(cuda.tokens[0], cpu.tokens[0], cpu.top2[0], strict=True):
        if mine != theirs:
            assert top2[1] - top2[3] < 1e-3
            break
        same += 1
    assert same >= 12, "a near tie so early leaves little that was compared"


@pytest.mark.parametrize("graphs", [False, True])
def test_races(device: CudaDevice, graphs: bool) -> None:
    """The happens-before check over eager runs and over launched graphs finds nothing."""
    for tail in ("device", "host"):
        got = run(SMALL, depth=1, graphs=graphs, tail=tail, record=True)
        assert got.result.telemetry["races"] == []


FAULTS = (
    "no_ready_wait", "no_release_wait", "graph_skips_wait", "racing_prefetch", "stale_slot",
    "slot_shifted", "source_off_by_one_row", "one_cell_per_stream", "wrong_layer",
    "late_on_device_row", "phantom_carry", "cross_sequence",
)  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_caught(device: CudaDevice, name: str) -> None:
    """A planted fault changes what is computed, or is named by the race check."""
    graphs = find(name).scenario == "graphs"
    caught = []
    plain = run(SMALL, resident=True)
    for delays in ("none", "slow_transfer", "slow_compute"):
        got = run(
            SMALL, depth=1, graphs=graphs, delays=delays, delay_ms=2.0, record=True, faults=(name,)
        )
        caught.append(not same(got, plain) or bool(got.result.telemetry["races"]))
    assert any(caught)


def test_memory_does_not_grow(device: CudaDevice) -> None:
    """T18: the same device memory after many captured tokens as after a few."""
    opened = open_model(SMALL)
    settings = DecoderSettings(device="cuda", depth=1, graphs=True)
    with Engine(opened, settings, 1, 4000) as engine:
        engine.prefill(0, list(range(100)))
        free: list[int] = []
        for _ in range(3):
            engine.generate({0: 1}, 600, lambda _: None)
            free.append(engine.devices[0].free_bytes())
        assert free[1] == free[2]


def test_a_seeded_history_gives_the_same_bytes_at_every_depth() -> None:
    """The arms of a context sweep start from the same rows, host-resident or not (T18)."""
    opened = open_model("synthetic:small,layers=4,head_dim=64,context=66000")
    task = DecodeTask([[3]], STEPS, history=SeededHistory(65_536))
    arms: list[dict[str, Any]] = [{"resident": True}, {"direct": True}]
    arms += [{"depth": depth, "graphs": True, "budget_mib": 0} for depth in (0, 1, 2, 4)]
    hashes = [
        run_task(opened, DecoderSettings(device="cuda", audit=True, **arm), task).result.hashes
        for arm in arms
    ]
    assert all(found == hashes[0] for found in hashes)
