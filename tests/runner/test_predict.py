"""Issue: the same transport code on the virtual device predicts, and prints every error."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from kvbench.analysis.pipeline_model import crossing_rows, gain_per_mib, optimum_ring_bytes
from kvbench.cli import main
from kvbench.device.oplog import OpLog
from kvbench.device.races import check
from kvbench.device.virtual import Costs
from kvbench.errors import SettingError, UsageError
from kvbench.records import encode_summary
from kvbench.transport.settings import TransportSettings
from kvbench.transport.simulate import Shape, simulate
from runner.predict import against_run, forecast
from runner.predict_origin import calibrate, origin_predictions, trends
from tests.report import samples

SHAPE = Shape(splits=16, row_bytes=1024, compute_s=0.016)
ROWS = 16_384
COPY_IS_COMPUTE = Costs(link=SHAPE.window_bytes(ROWS) / SHAPE.compute_s)


def test_ordered_is_copy_plus_compute_and_pipelined_the_larger() -> None:
    ordered = simulate(SHAPE, COPY_IS_COMPUTE, TransportSettings(), ROWS)
    pipelined = simulate(SHAPE, COPY_IS_COMPUTE, TransportSettings(depth=1, budget_mib=0), ROWS)
    assert ordered.step_s == pytest.approx(2 * SHAPE.compute_s, rel=0.01)
    assert pipelined.step_s == pytest.approx(SHAPE.compute_s, rel=0.03)
    assert pipelined.bytes["early"] == pytest.approx(ordered.bytes["ordered"], rel=0.01)


def test_a_look_ahead_that_ends_at_the_token_pays_for_its_first_window() -> None:
    """T4 against T4a: about one window of sixteen."""
    settings = TransportSettings(depth=1, budget_mib=0)
    carried = simulate(SHAPE, COPY_IS_COMPUTE, settings, ROWS).step_s
    waited = simulate(SHAPE, COPY_IS_COMPUTE, replace(settings, boundary="wait"), ROWS).step_s
    assert waited > carried * 1.04


def test_a_ring_over_its_budget_declines() -> None:
    made = simulate(SHAPE, COPY_IS_COMPUTE, TransportSettings(depth=1, budget_mib=16), ROWS)
    assert made.declines == {"budget": 20}
    assert made.step_s == pytest.approx(2 * SHAPE.compute_s, rel=0.01)


def test_waits_matter_less_the_longer_the_token() -> None:
    gains = []
    for compute_s in (0.002, 0.02):
        shape = replace(SHAPE, compute_s=compute_s)
        blocking = TransportSettings(depth=1, budget_mib=0, loop="blocking", tail="host")
        costly = simulate(shape, Costs(link=1e12, wait=3e-5), blocking, 64).step_s
        free = simulate(shape, Costs(link=1e12), blocking, 64).step_s
        gains.append(costly / free - 1)
    assert gains[0] > 5 * gains[1] > 0


def test_a_simulated_run_is_ordered_like_a_real_one() -> None:
    """The happens-before check finds nothing in the log of a simulation."""
    log = OpLog()
    simulate(Shape(4, 64, 1e-3), Costs(link=1e9), TransportSettings(depth=1), 256, steps=3, log=log)
    assert len(log.ops("early")) > 10
    assert check(log) == []


def test_forecast_peaks_at_the_crossing() -> None:
    rows = round(crossing_rows(16, 1024, COPY_IS_COMPUTE.link, SHAPE.compute_s))
    assert rows == ROWS
    found = forecast(SHAPE, COPY_IS_COMPUTE, TransportSettings(), (1024, rows, 65_536))
    gains = [f.gain_percent for f in found]
    assert gains[1] > 90 and gains[0] < 10 and gains[2] < 30
    assert {f.best_depth for f in found} == {1}
    ring = optimum_ring_bytes(3, 16, COPY_IS_COMPUTE.link, SHAPE.compute_s) / (1 << 20)
    assert found[1].ring_mib == pytest.approx(ring, rel=0.05)


def test_gain_per_mib_falls_with_the_square_of_the_rows() -> None:
    at = [gain_per_mib(rows, 16, 1088, 23.9e9, 0.0257) for rows in (40_000, 80_000)]
    assert at[0] / at[1] == pytest.approx(4.0, rel=0.01)


def test_the_origins_figures_are_predicted_from_one_row() -> None:
    """Depths and ring within 5%; sweep gains within 5 points or with a reason."""
    found = {p.what: p for p in origin_predictions(calibrate())}
    depths = [found[f"depth {n}"] for n in (1, 2, 4)]
    assert [abs(p.error) < 5 for p in depths] == [True] * 3
    assert depths[0].predicted > depths[1].predicted > depths[2].predicted
    assert abs(next(p for what, p in found.items() if "optimum ring" in what).error) < 5
    packed, unpacked = (found[what] for what in found if what.startswith("8 sequences"))
    assert abs(packed.error) < 1 and "exceed the budget of 128 MiB" in packed.note
    assert abs(unpacked.error) < 1
    sweep = [p for what, p in found.items() if what.startswith("gain at")]
    assert len(sweep) == 6
    assert [p.what for p in sweep if abs(p.error) > 5] == ["gain at 32,768"]
    assert "no overlap of the same work does that" in found["gain at 32,768"].note
    assert max(sweep, key=lambda p: p.predicted).what == "gain at 16,384"
    assert found["gain at 16,384 with N + 1 slots"].predicted < 5
    assert abs(found["most rows before 128 MiB decline"].error) < 0.1
    layers = [p for what, p in found.items() if "layers on the device" in what]
    assert len(layers) == 3 and all(abs(p.error) < 1 for p in layers)


def test_trends_that_nothing_published_can_be_held_against_are_told_in_words() -> None:
    per_mib, waits = trends(calibrate())
    assert "a factor of 4.00 for 2 times the rows" in per_mib
    shares = [float(share) for share in re.findall(r"([\d.]+)% at", waits)]
    assert len(shares) == 3 and shares[0] > 3 * shares[1] > 9 * shares[2] > 0


@pytest.mark.parametrize("share", [0.0, 0.95])
def test_a_window_is_read_by_some_of_the_compute(share: float) -> None:
    with pytest.raises(SettingError, match="read_share"):
        replace(SHAPE, read_share=share)


def summary_of(shape: Shape, costs: Costs) -> samples.Summary:
    """A stored experiment whose arms behave as the simulation says, 2% slower for the second."""
    cell = samples.cell()
    arms = []
    for arm, depth in zip(cell.arms, (0, 1), strict=True):
        made = simulate(shape, costs, TransportSettings(depth=depth, budget_mib=0), ROWS)
        step = made.step_s * (1.02 if depth else 1.0)
        arms.append(
            msgspec.structs.replace(
                arm,
                settings={"depth": depth, "budget_mib": 0},
                bytes={"early" if depth else "ordered": 1},
                metrics={
                    "step_ms": step * 1e3,
                    "window_mib_per_step": shape.window_bytes(ROWS) / (1 << 20),
                },
                plan={"cpu0": {"staged_graphs": 10, "deliveries": 160}} if depth else {},
            )
        )
    workload = {"kind": "prose", "prompt_tokens": ROWS}
    link = {"bytes_per_s": costs.link}
    return samples.summary(
        msgspec.structs.replace(cell, arms=tuple(arms), workload=workload, link=link)
    )


def test_a_stored_experiment_is_predicted_from_its_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = summary_of(SHAPE, COPY_IS_COMPUTE)
    (prediction,) = against_run(summary)
    assert prediction.error == pytest.approx(2.0, abs=0.6)
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "summary.json").write_bytes(encode_summary(summary))
    assert main(["predict", "--run", str(tmp_path)]) == 0
    assert "prose-1024, pipelined" in capsys.readouterr().out


def test_an_experiment_without_a_known_link_is_refused() -> None:
    bare = msgspec.structs.replace(samples.cell(), link={})
    with pytest.raises(UsageError, match="needs a slowed link and a baseline of depth 0"):
        against_run(samples.summary(bare))


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    machine = ["--link-gb-s", "23.9", "--compute-ms", "25.7"]
    model = ["--model", "synthetic:hybrid-27b", "--kv-type", "q8_0", "--context", "16384"]
    assert main(["predict", *machine, *model, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["rows"] == 16384 and found["best_depth"] == 1
    assert main(["predict", *machine, *model]) == 0
    out = capsys.readouterr().out
    assert "copies take as long as the compute at" in out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert main(["predict", "--published"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines()[:6])) <= 80
    for wrong in ([], ["--link-gb-s", "1"], ["--published", "--run", "x"], ["--run", "nowhere"]):
        assert main(["predict", *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
