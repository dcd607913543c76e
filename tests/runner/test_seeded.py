"""A suite whose contexts are seeded: gate, blocks and every report through ``kvbench ab``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvbench.cli import main

SUITE = """
schema = 1
name = "deep"
baseline = "ordered"
blocks = 2
model = "synthetic:tiny,context=65600"

[workload]
history = "seeded"
prompt_tokens = 65536
generate = 4
warmup = 1

[environment]
other_cores = 1e6
steal = 1.0

[[arms]]
name = "ordered"
engine = "reference"

[[arms]]
name = "depth1"
engine = "reference"
settings = { depth = 1, faults = FAULTS }
"""
LABEL = "SEEDED HISTORY"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_context_of_64k_is_gated_timed_and_labelled(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """M1, M2 and the gate first, on a context that no prefill of a test could reach."""
    (here / "deep.toml").write_text(SUITE.replace("FAULTS", "[]"))
    assert main(["ab", "deep.toml", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    (cell,) = summary["cells"]
    assert cell["gate"]["outcome"] == "passed"
    assert any(label.startswith(LABEL) for label in summary["labels"])
    (run,) = (here / "results").iterdir()
    for name in ("report.md", "report.html"):
        assert LABEL in (run / name).read_text()
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    results = [line["result"] for line in lines if line["kind"] == "run"]
    assert len(results) == 8
    assert {r["telemetry"]["history"] for r in results} == {"seeded: 65536 rows, seed 1"}
    for name in ("history", "logits", "tokens"):
        assert len({r["hashes"][name] for r in results}) == 1
    assert main(["show", str(run)]) == 0
    assert LABEL in capsys.readouterr().out


def test_a_fault_fails_the_gate_there_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Negative control."""
    suite = SUITE.replace("FAULTS", '["no_ready_wait"], delays = "slow_transfer"')
    (here / "deep.toml").write_text(suite.replace("65536", "600"))
    assert main(["ab", "deep.toml"]) == 4
    assert "INVALID" in capsys.readouterr().out


def test_a_seeded_experiment_can_be_profiled(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the op log cannot know is absent, not zero."""
    (here / "deep.toml").write_text(SUITE.replace("FAULTS", "[]").replace("65536", "600"))
    assert main(["profile", "deep.toml", "--out", "shown"]) == 0
    out = capsys.readouterr().out
    assert "cudaMemcpyAsync" in out and "API times: the op log times waits only" in out
