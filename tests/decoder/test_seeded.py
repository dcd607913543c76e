"""A history of seeded rows: the same bytes in every arm, at any depth, and labelled (T18, M6)."""

from __future__ import annotations

from typing import Any

import pytest

from kvbench.cli import main
from kvbench.decoder.model import open_model
from kvbench.decoder.seeded import SeededHistory, parse
from kvbench.decoder.session import DecodeRun, DecodeTask, run_task
from kvbench.decoder.settings import DecoderSettings
from kvbench.errors import UsageError

ROWS = 2100
"""More than two turns of the drawn rows."""


def run(
    model: str = "synthetic:tiny-hybrid,head_dim=32",
    seed: int = 1,
    rows: int = ROWS,
    **settings: Any,
) -> DecodeRun:
    chosen = DecoderSettings(audit=True, poison=True, **settings)
    task = DecodeTask([[3], [4]], 6, warmup=2, history=SeededHistory(rows, seed))
    return run_task(open_model(model), chosen, task)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
def test_every_arm_starts_from_the_same_bytes(kv_type: str) -> None:
    resident = run(kv_type=kv_type, resident=True).result.hashes
    arms: list[dict[str, Any]] = [{"depth": depth} for depth in (0, 1, 2, 4)]
    arms += [{"depth": 1, "tail": "host"}, {"depth": 1, "devices": 2}, {"direct": True}]
    for arm in arms:
        assert run(kv_type=kv_type, **arm).result.hashes == resident, arm


def test_a_unified_cache_starts_from_it_too() -> None:
    """Its cells lie elsewhere, so it has sums of its own; they do not depend on the depth."""
    resident, ahead = (run(unified=True, **arm) for arm in ({"resident": True}, {"depth": 1}))
    assert ahead.result.hashes == resident.result.hashes


def test_the_bytes_moved_are_those_of_the_context() -> None:
    """Bytes parity (T2): the history travels like a prompt's, early or in order."""
    ordered, ahead = run(depth=0).result.bytes, run(depth=1).result.bytes
    kinds = ("early", "late", "ordered")
    delivered = [sum(moved.get(kind, 0) for kind in kinds) for moved in (ordered, ahead)]
    steps, layers, sequences, row = 8, 2, 2, 2 * 32 * 2
    assert delivered[0] == delivered[1] >= steps * layers * sequences * 2 * ROWS * row


def test_seed_and_length_decide() -> None:
    hashes = [run(seed=s, rows=r).result.hashes for s, r in ((1, 64), (2, 64), (1, 65))]
    for name in ("history", "logits"):
        assert len({h[name] for h in hashes}) == 3
    assert all("snapshot" not in h for h in hashes)


def test_a_record_says_so() -> None:
    assert run(rows=64).result.telemetry["history"] == "seeded: 64 rows, seed 1"


def test_a_delivery_that_lost_its_wait_is_noticed() -> None:
    """Negative control: the hash depends on the history's bytes. Some order of eight shows it."""
    right = run(depth=1).result.hashes
    faulty = [run(depth=1, faults=("no_ready_wait",), explore=seed) for seed in range(8)]
    assert any(wrong.result.hashes["audit"] != right["audit"] for wrong in faulty)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "option history: Object missing required field `tokens`"),
        ({"tokens": 0}, "option history: Expected `int` >= 1"),
        ({"tokens": 8, "rows": 8}, "unknown field `rows`"),
        (7, "option history: Expected `object`"),
    ],
)
def test_a_wrong_option_is_one_line(value: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        parse(value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prompt", "x"], "a prompt and a seeded history exclude each other"),
        (["--prompt-tokens", "0"], "a seeded history needs 1 token or more"),
        (["--prompt-tokens", "5000"], "exceed the context of tiny, 4096"),
        (["--set", "draft=prompt"], "draft = 'prompt': not on a seeded history"),
    ],
)
def test_run_refuses(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["run", "--model", "synthetic:tiny", "--history", "seeded", *words]
    assert main(given) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1


def test_run_says_that_there_was_no_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", "synthetic:tiny", "--history", "seeded", "--prompt-tokens", "300"]
    assert main(["run", *given, "--generate", "4", "--set", "depth=1"]) == 0
    out = capsys.readouterr().out
    assert "a history not from a prompt (seeded: 300 rows, seed 1)" in out
    assert max(map(len, out.splitlines())) <= 100
