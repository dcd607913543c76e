"""The cost of a wait: fitted to one published row, tested on the other, printed by a command."""

from __future__ import annotations

import json

import pytest

from kvbench.analysis.waitcost import fit, predict, read_published
from kvbench.bundled import published_dir
from kvbench.cli import main
from kvbench.device.cpu.charge import WaitCharge
from kvbench.spec.load import load_suite


def test_the_fit_uses_the_speculative_row_alone() -> None:
    published = read_published(published_dir() / "sync_elision.csv")
    found = fit(published)
    assert found.saved_ms == pytest.approx(1e3 / 91.11 - 1e3 / 138.98)
    assert found.calls == pytest.approx((36_199 - 12_370) / 1536)
    assert found.cost_us == pytest.approx(243.7, abs=0.05)


def test_a_prediction_returns_the_row_it_was_made_of() -> None:
    """Spared exactly what the published plain row saved, the model gives that row back."""
    published = read_published(published_dir() / "sync_elision.csv")
    spared = (1e3 / 51.25 - 1e3 / 59.92) / 0.2437
    found = predict(published, 243.7, spared)
    assert found.share == pytest.approx(1)
    assert found.gain == pytest.approx(found.published_gain) == pytest.approx(0.169, abs=5e-4)


def test_the_windows_suite_charges_the_fitted_cost() -> None:
    cost = fit(read_published(published_dir() / "sync_elision.csv")).cost_us
    suite, _ = load_suite("sync-elision-windows")
    assert {arm.settings["wait_cost_us"] for arm in suite.arms} == {round(cost, 1)}


def test_the_command_prints_the_table_and_the_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["waits"]) == 0
    shown = capsys.readouterr().out
    assert "one plain token" in shown and "243.7 us each" in shown
    assert main(["waits", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["per_token"] == {"stock": 18, "elided": 5, "quiet": 0}
    assert len(data["sites"]) == 19


def test_measured_waits_are_the_tables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvbench.decoder.measure_waits.TOKENS", 48)
    assert main(["waits", "--measure", "--json"]) == 0
    rows = {(r["draft"], r["mode"]): r for r in json.loads(capsys.readouterr().out)}
    assert rows["none", "stock"]["per_token"] == 18
    assert rows["none", "elided"]["per_token"] == 5
    assert rows["none", "quiet"]["per_token"] == 1
    stock, elided = rows["layers:2", "stock"], rows["layers:2", "elided"]
    assert elided["per_token"] <= (1 - 0.658) * stock["per_token"]
    assert stock["other_calls"] == elided["other_calls"]
    assert rows["layers:2", "quiet"]["per_token"] <= 1
    assert rows["layers:2", "quiet"]["redundant"] == 0
    assert len({json.dumps(r["hashes"], sort_keys=True) for r in rows.values()}) == 1


def test_a_charge_is_paid_in_full_however_long_a_sleep_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sleeps that run 30% long are made up for: the total stays the stated one."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr("time.sleep", lambda s: now.__setitem__(0, now[0] + s * 1.3))
    charge = WaitCharge(1e-4)
    for _ in range(1000):
        charge.pay()
    assert charge.total_s == pytest.approx(0.1, rel=0.01)
    WaitCharge(0.0).pay()
    assert now[0] == charge.total_s
