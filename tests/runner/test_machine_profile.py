"""``doctor --profile`` measures, ``predict --machine`` reads it and says how far off it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvbench.cli import main
from kvbench.device.virtual import Costs
from kvbench.errors import UsageError
from kvbench.records import ArmSummary, Summary, encode_summary
from kvbench.records.machine import ComputeTime, MachineProfile, encode_profile, read_profile
from kvbench.transport.settings import TransportSettings
from kvbench.transport.simulate import simulate
from runner.predict_machine import LAG, Machine, against_run, crossing
from runner.predict_measured import against_sweep, sweeps
from tests.report import samples

MODEL = "synthetic:tiny,context=700"
FACTS: dict[str, Any] = {
    "v": 1,
    "kind": "machine-profile",
    "kvbench": "0",
    "made": "2026-01-01T00:00:00Z",
    "machine": "id",
    "device": "cpu",
    "device_name": "a CPU",
    "link": [{"bytes": 16384, "seconds": 1e-5}, {"bytes": 1 << 26, "seconds": 0.0671}],
    "store": [{"bytes": 16384, "seconds": 1e-5}, {"bytes": 1 << 26, "seconds": 0.0671}],
    "link_bytes_per_s": 1e9,
    "link_latency_s": 1e-6,
    "wait_s": 1e-5,
    "issue_s": 1e-6,
    "model": "synthetic:small",
    "kv_type": "f16",
    "weight_type": "f32",
    "layers": 8,
    "outside_s": 0.001,
    "compute": [
        {"rows": 1000, "token_s": 0.009, "layer_s": 0.001},
        {"rows": 3000, "token_s": 0.025, "layer_s": 0.003},
    ],
    "seconds": 1.0,
}


def profile(**changes: Any) -> MachineProfile:
    return msgspec.convert({**FACTS, **changes}, MachineProfile)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile that was really measured, on the cpu device."""
    path = tmp_path_factory.mktemp("profile") / "here" / "machine.json"
    assert main(["doctor", "--profile", str(path), "--model", MODEL]) == 0
    return path


def test_a_measured_profile_is_whole(written: Path) -> None:
    found = read_profile(written)
    assert found.device == "cpu" and found.model == MODEL and found.layers == 2
    assert found.link[0].seconds < found.link[-1].seconds
    assert found.wait_s > 0 and found.issue_s > 0
    assert [c.rows for c in found.compute] == [512]
    assert all(c.layer_s >= 0 and c.token_s > 0 for c in found.compute)
    assert [p.name for p in written.parent.iterdir()] == ["machine.json"]


def test_predict_reads_what_doctor_wrote(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--machine", str(written)]) == 0
    out = capsys.readouterr().out
    assert "how far such predictions were off" in out and "21,248 rows, ordered" in out
    ordered = []
    for words in ([], ["--link-gb-s", "0.01"]):
        assert main(["predict", "--machine", str(written), *words, "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert len(document["errors_elsewhere"]) == sum(len(against_sweep(p)) for p in sweeps())
        ordered.append(document["forecast"][0]["ordered"])
    assert ordered[1] < ordered[0]


def test_progress_is_shown_and_the_document_is_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "m.json"
    assert main(["doctor", "--profile", str(target), "--model", MODEL, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["kind"] == "machine-profile"
    steps = [line for line in err.splitlines() if line.startswith("[")]
    first, last = steps[0].split("/"), steps[-1].split("/")
    assert first[0] == "[1" and last[0][1:] == last[1].split("]")[0]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot read the machine profile: No such file"),
        (b"", "no machine profile: not JSON"),
        (b"\xff\xfe", "no machine profile: not JSON"),
        (b"[" * 100_000, "no machine profile: not JSON"),
        (b"[]", '"kind" is not "machine-profile"'),
        (b'{"v": 1}', '"kind" is not "machine-profile"'),
        ({"v": 2}, "version 2; this kvbench reads version 1"),
        ({"link": []}, "Expected `array` of length >= 2"),
        ({"link_bytes_per_s": -1}, "link_bytes_per_s"),
        ({"compute": FACTS["compute"][::-1]}, "compute: sizes must ascend, they are [3000, 1000]"),
        ({"wait_s": "fast"}, "Expected `float`, got `str` - at `$.wait_s`"),
        ({"speed": 1}, "unknown field `speed`"),
    ],
)
def test_a_bad_file_is_one_line(
    content: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.json"
    if isinstance(content, dict):
        path.write_bytes(msgspec.json.encode({**FACTS, **content}))
    elif content is not None:
        path.write_bytes(content)
    assert main(["predict", "--machine", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1 and str(path) in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["doctor", "--kv-type", "f16"], "--kv-type goes with --profile"),
        (["doctor", "--profile", "/proc/no/m.json", "--model", MODEL], "cannot write the profile"),
        (["doctor", "--profile", "m", "--model", "synthetic:tiny,context=8"], "holds no history"),
        (["doctor", "--profile", "m", "--model", MODEL, "--kv-type", "q8_0"], "head of 16 values"),
        (["predict", "--machine", "m.json", "--model", "x"], "--machine goes with --run"),
        (["predict", "--measured", "--published"], "give one of --run, --published, --measured"),
    ],
)
def test_refusals(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.count("\n") == 1


def test_a_profile_is_written_as_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(encode_profile(profile()))
    assert read_profile(path) == profile()


def test_compute_between_and_beyond_what_was_measured() -> None:
    assert profile().compute_at(2000) == pytest.approx((0.016, 0.001))
    assert profile().compute_at(5000) == pytest.approx((0.040, 0.001))
    assert profile().compute_at(500) == pytest.approx((0.004, 0.001))
    single = profile(compute=[{"rows": 10, "token_s": 0.009, "layer_s": 0.001}])
    assert single.compute_at(99_999) == pytest.approx((0.008, 0.001))


def test_copies_cost_what_was_measured_for_their_size() -> None:
    costs = Costs(link=1.0, link_sizes=((1000, 2.0), (3000, 4.0)))
    for size, seconds in ((1000, 2.0), (2000, 3.0), (3000, 4.0), (6000, 8.0), (0, 1.0)):
        assert costs.copy(size, "host_to_device") == pytest.approx(seconds)
    assert costs.copy(5, "device_to_host") == 5.0


def test_the_crossing_is_where_copies_take_as_long() -> None:
    """8 layers of 2 x 128-byte rows at 1 GB/s against a token that stays as it is."""
    flat = [ComputeTime(1000, 0.009, 0.001), ComputeTime(3000, 0.009, 0.001)]
    machine = Machine(profile(compute=[msgspec.to_builtins(c) for c in flat]), 1e9)
    shape = machine.shape(1)
    rows = crossing(machine)
    assert rows == pytest.approx(0.009 * 1e9 / shape.window_bytes(1), abs=1)
    assert crossing(Machine(profile(), 1e12)) is None


def stored(machine: Machine, rows: int = 2000, generate: int = 32) -> Summary:
    """An experiment whose arms behave as predicted, 4% slower for the second."""
    cell, arms = samples.cell(), []
    link = {"bytes_per_s": 5e8}
    slowed = Machine(machine.profile, 5e8)
    at = rows + generate // 2
    for arm, depth in zip(cell.arms, (0, 1), strict=True):
        settings = TransportSettings(depth=depth)
        step = simulate(slowed.shape(at), slowed.costs, settings, at, lag=LAG).step_s
        changed: ArmSummary = msgspec.structs.replace(
            arm,
            engine="reference",
            settings={"depth": depth},
            metrics={"step_ms": step * 1e3 * (1.04 if depth else 1.0)},
        )
        arms.append(changed)
    workload = {"model": machine.profile.model, "prompt_tokens": rows, "generate": generate}
    return samples.summary(
        msgspec.structs.replace(cell, arms=tuple(arms), workload=workload, link=link)
    )


def test_a_stored_experiment_is_predicted_from_the_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(profile())
    ordered, pipelined = against_run(machine, stored(machine))
    assert ordered.error == pytest.approx(0.0, abs=1e-6)
    assert pipelined.error == pytest.approx(4.0, abs=1e-3)
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "summary.json").write_bytes(encode_summary(stored(machine)))
    (tmp_path / "m.json").write_bytes(encode_profile(machine.profile))
    assert main(["predict", "--machine", str(tmp_path / "m.json"), "--run", str(tmp_path)]) == 0
    assert "pipelined" in capsys.readouterr().out
    other = Machine(profile(model="synthetic:tiny"))
    with pytest.raises(UsageError, match="no arm of the profile's device, model and KV type"):
        against_run(other, stored(machine))


def test_measured_sweeps_are_predicted_and_every_error_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over 5% only with a written reason."""
    by_sweep = {path.stem: against_sweep(path) for path in sweeps()}
    assert {name: len(found) for name, found in by_sweep.items()} == {
        "decode-1": 18,
        "decode-2": 11,
        "decode-3": 5,
        "decode-4": 12,
    }
    found = [p for each in by_sweep.values() for p in each]
    assert max(abs(p.error) for p in found) < 8
    assert all(p.note for p in found if abs(p.error) > 5)
    assert main(["predict", "--measured"]) == 0
    out = capsys.readouterr().out
    assert all(p.what in out for p in found)
    bad = tmp_path / "decode.jsonl"
    bad.write_text('{"rates": {}\n')
    with pytest.raises(UsageError, match=r"decode\.jsonl:1: damaged sweep"):
        against_sweep(bad)
