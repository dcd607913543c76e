"""S1-S8 on a GPU: stock, elided and quiet waits, plain and speculative, give the resident bytes."""

from __future__ import annotations

from typing import Any

import pytest

from gates.elision.arms import prompts
from gates.elision.waits import work_of
from kvbench.decoder.model import open_model
from kvbench.decoder.session import DecodeRun, DecodeTask, run_task
from kvbench.decoder.settings import parse
from kvbench.decoder.waits import predicted
from kvbench.device.cuda.device import CudaDevice

pytestmark = pytest.mark.cuda

MODEL = "synthetic:small,layers=4,head_dim=64,shallow=2,later=250"
DRAFTS = {"plain": "none", "prompt": "prompt", "shallow": "layers:2"}
WARMUP, GENERATE = 2, 16


def decode(sequences: int = 1, **settings: Any) -> DecodeRun:
    chosen = parse({"device": "cuda", "record": True, "audit": True, **settings})
    task = DecodeTask(prompts(sequences), GENERATE, WARMUP, snapshots=False)
    return run_task(open_model(MODEL), chosen, task)


@pytest.fixture(scope="module")
def plain() -> dict[int, DecodeRun]:
    return {}


@pytest.fixture
def resident(device: CudaDevice, plain: dict[int, DecodeRun]) -> dict[int, DecodeRun]:
    """Plain decoding without transport: what every arm must equal, by sequences."""
    if not plain:
        plain.update({n: decode(n, resident=True) for n in (1, 3)})
    return plain


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("draft", sorted(DRAFTS))
def test_only_waits_fall(resident: dict[int, DecodeRun], draft: str, graphs: bool) -> None:
    """S5: equal outputs, counts as the table says, every other call as often made."""
    shape: dict[str, Any] = {"draft": DRAFTS[draft], "graphs": graphs, "depth": 1}
    arms = {mode: decode(waits=mode, **shape).result for mode in ("stock", "elided", "quiet")}
    for mode, result in arms.items():
        for kind in ("tokens", "logits", "audit"):
            assert result.hashes[kind] == resident[1].result.hashes[kind], (mode, kind)
        assert result.telemetry["races"] == [], mode
    for mode in ("stock", "elided"):
        for prefix, work in work_of(arms[mode]).items():
            for site, wanted in predicted(mode, work).items():  # type: ignore[arg-type]
                assert arms[mode].waits[f"{prefix}{site}"][:2] == wanted, (mode, prefix, site)
    made = {mode: sum(count[0] for count in result.waits.values()) for mode, result in arms.items()}
    assert made["elided"] <= (1 - 0.658) * made["stock"]
    assert made["quiet"] <= WARMUP + GENERATE + 4  # the ring's end is not the token loop's


@pytest.mark.parametrize("length", [1, 4, 7, 15])
@pytest.mark.parametrize("depth", [0, 1])
def test_drafting_changes_no_byte(resident: dict[int, DecodeRun], length: int, depth: int) -> None:
    """Greedy speculation is lossless for several sequences, at any draft length."""
    got = decode(3, draft="layers:2", draft_length=length, depth=depth)
    for kind in ("tokens", "logits", "audit"):
        assert got.result.hashes[kind] == resident[3].result.hashes[kind]
    assert got.result.telemetry["races"] == []


def test_two_devices_keep_every_wait(resident: dict[int, DecodeRun]) -> None:
    """S4."""
    got = decode(waits="elided", devices=2, depth=1)
    assert got.result.hashes["tokens"] == resident[1].result.hashes["tokens"]
    assert all(elided == 0 for _, elided, _ in got.result.waits.values())
