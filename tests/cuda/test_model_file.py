"""A real model file on a GPU: the cpu device's greedy tokens, and every arm's bytes equal."""

from __future__ import annotations

from typing import Any

import pytest

from kvbench import assets
from kvbench.decoder.model import open_model
from kvbench.decoder.session import DecodeRun, DecodeTask, run_task
from kvbench.decoder.settings import parse
from kvbench.device.cuda.device import CudaDevice

pytestmark = pytest.mark.cuda

NAME = "smollm2"
TEXT = "The three laws of thermodynamics, in plain words, are these. First,"
GENERATE = 96
NEAR_TIE = {"f16": 1e-2, "q8_0": 1e-1}
"""The margin between the two best logits within which two correct orders of addition may differ: a
value of K or V at the edge of two steps of q8_0 falls to either."""


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    if not any(s.asset.name == NAME and s.state == "pulled" for s in assets.statuses()):
        pytest.skip(f"{NAME} is not here: kvbench assets pull {NAME}")
    tokenizer = open_model(NAME).tokenizer
    assert tokenizer is not None
    return tokenizer.encode(TEXT)


def decode(prompt: list[int], teacher: list[int] | None = None, **settings: Any) -> DecodeRun:
    forced = [teacher] if teacher else None
    task = DecodeTask([prompt], GENERATE, teacher=forced, detail=True, snapshots=False)
    return run_task(open_model(NAME), parse(settings), task)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_tokens_are_the_cpus(device: CudaDevice, prompt: list[int], kv_type: str) -> None:
    """At every position of the cpu device's text, but where its two best logits all but tie."""
    cpu = decode(prompt, kv_type=kv_type)
    cuda = decode(prompt, cpu.tokens[0], kv_type=kv_type, device="cuda", depth=1)
    assert len(set(cpu.tokens[0])) > 20, "blind: few tokens"
    for at, (mine, theirs) in enumerate(zip(cuda.top2[0], cpu.top2[0], strict=True)):
        if mine[0] != theirs[0]:
            assert theirs[1] - theirs[3] < NEAR_TIE[kv_type], (at, mine, theirs)


@pytest.mark.parametrize("weight_type", ["f32", "f16", "q8_0"])
def test_arms_are_exact(device: CudaDevice, prompt: list[int], weight_type: str) -> None:
    """The ring at any depth gives the resident logits, byte for byte."""
    shape: dict[str, Any] = {"device": "cuda", "weight_type": weight_type, "audit": True}
    plain = decode(prompt, resident=True, **shape)
    for depth in (0, 1, 2, 4):
        got = decode(prompt, depth=depth, graphs=depth > 0, **shape)
        for kind in ("tokens", "logits", "audit"):
            assert got.result.hashes[kind] == plain.result.hashes[kind], (kind, depth)
