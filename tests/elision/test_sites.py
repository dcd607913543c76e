"""The docs' table of wait sites predicts the counts exactly; outputs are equal in all arms (S5)."""

from __future__ import annotations

from typing import Any

import pytest

from kvbench.decoder.model import Model, open_model
from kvbench.decoder.session import DecodeRun, DecodeTask, run_task
from kvbench.decoder.settings import parse
from kvbench.decoder.waits import Work, predicted, real_waits
from kvbench.errors import SettingError

GENERATE = 9


@pytest.fixture(scope="module")
def model() -> Model:
    return open_model("synthetic:tiny,layers=3")


def run(model: Model, sequences: int = 1, **settings: Any) -> DecodeRun:
    task = DecodeTask([[i + 1, 5, 9] * 7 for i in range(sequences)], GENERATE, warmup=1)
    return run_task(model, parse({"record": True, "audit": True, "depth": 1, **settings}), task)


def calls(done: DecodeRun) -> dict[str, int]:
    return {k: v for k, v in done.result.counters.items() if k != "queue_synchronize"}


@pytest.mark.parametrize("sequences", [1, 3])
@pytest.mark.parametrize("extra", [{}, {"graphs": True}, {"unified": True}, {"depth": 0}])
def test_counts_are_the_tables_and_nothing_else_changes_s5(
    model: Model, sequences: int, extra: dict[str, Any]
) -> None:
    stock = run(model, sequences, waits="stock", **extra)
    elided = run(model, sequences, waits="elided", **extra)
    steps = GENERATE + 1
    rows = steps * sequences if extra.get("unified") else 0
    work = Work(steps, steps, steps * sequences, rows)
    for mode, done in (("stock", stock), ("elided", elided)):
        for site, (made, skipped) in predicted(mode, work).items():  # type: ignore[arg-type]
            assert done.result.waits[site][:2] == (made, skipped), (mode, site)
    assert {s: sum(c[:2]) for s, c in stock.result.waits.items()} == {
        s: sum(c[:2]) for s, c in elided.result.waits.items()
    }, "the same calls are met, the transport's own included"
    assert calls(stock) == calls(elided)
    assert stock.result.hashes == elided.result.hashes
    assert stock.result.bytes == elided.result.bytes
    assert stock.result.telemetry["races"] == elided.result.telemetry["races"] == []


def test_a_plain_token_waits_as_often_as_a_stock_engine_does() -> None:
    token = Work(graphs=1, read=1, tokens=1)
    assert 18 <= real_waits("stock", token) <= 24
    assert 1 - real_waits("elided", token) / real_waits("stock", token) >= 0.658
    assert real_waits("quiet", token) == 0


@pytest.mark.parametrize("extra", [{}, {"graphs": True}, {"unified": True}, {"lag": 1}])
def test_quiet_waits_once_a_token_and_never_in_vain(model: Model, extra: dict[str, Any]) -> None:
    stock = run(model, 2, waits="stock", **extra)
    quiet = run(model, 2, waits="quiet", **extra)
    assert quiet.result.hashes == stock.result.hashes
    assert quiet.tokens == stock.tokens
    made = sum(count[0] for count in quiet.result.waits.values())
    assert made <= GENERATE + 1
    assert all(count[2] == 0 for count in quiet.result.waits.values())
    assert quiet.result.telemetry["races"] == []


def test_remaining_redundant_waits_of_elided_are_listed_by_site_s6(model: Model) -> None:
    elided = run(model, waits="elided")
    assert {s for s, count in elided.result.waits.items() if count[2]} == {"graph.done"}


@pytest.mark.parametrize("waits", ["elided", "quiet"])
def test_two_logical_devices_keep_every_wait_s4(model: Model, waits: str) -> None:
    done = run(model, waits=waits, devices=2)
    assert all(count[1] == 0 for count in done.result.waits.values())
    if waits == "elided":
        assert done.result.counters == run(model, waits="stock", devices=2).result.counters


def test_leases_hold_over_a_whole_run_s2(model: Model) -> None:
    for waits in ("stock", "elided", "quiet"):
        watched = run(model, waits=waits, check_leases=True)
        assert watched.result.hashes == run(model, waits=waits).result.hashes


@pytest.mark.parametrize("bad", [-1.0, 2e6])
def test_a_cost_out_of_range_is_refused(bad: float) -> None:
    with pytest.raises(SettingError, match="wait_cost_us"):
        parse({"wait_cost_us": bad})


def test_a_charged_cost_is_for_the_threaded_cpu_device_only() -> None:
    with pytest.raises(SettingError, match="only on the threaded cpu device"):
        parse({"wait_cost_us": 100.0, "explore": 3})


def test_the_explorer_orders_the_cpu_devices_work_only() -> None:
    with pytest.raises(SettingError, match=r"explore = 3 .* the cpu device"):
        parse({"explore": 3, "device": "cuda"})
