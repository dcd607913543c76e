"""Issue 2: impossible suites are refused with file, arm and reason, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.errors import UsageError
from runner import ab
from tests.runner.conftest import Told

SUITE = """
schema = 1
name = "t"
baseline = "a"
blocks = 2
model = "MODEL"
[workload]
kind = "KIND"
prompt_tokens = 16
generate = 4
[[arms]]
name = "a"
engine = "reference"
settings = { depth = 0 }
[[arms]]
name = "b"
engine = "reference"
settings = { SETTING }
"""


def start(tmp_path: Path, told: Told, model: str, kind: str, setting: str) -> None:
    path = tmp_path / "t.toml"
    text = SUITE.replace("MODEL", model).replace("KIND", kind).replace("SETTING", setting)
    path.write_text(text)
    ab.start(str(path), told.watch, root=tmp_path / "results")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("dpeth = 1", r"^dpeth = 1 WHERE .*; known settings: .*\bdepth\b"),
        ('depth = "one"', "^depth = 'one' WHERE"),
        ("depth = -1", "^depth = -1 WHERE is not allowed: a whole number from 0 to 8"),
        ("depth = 99999999999999999999999", "a whole number from 0 to 8"),
        ('tail = "both"', "^tail = 'both' WHERE is not allowed: one of .*host"),
    ],
)
def test_settings_that_the_reference_decoder_would_refuse(
    tmp_path: Path, told: Told, setting: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason.replace("WHERE", r"\(.*t\.toml, arm b\)")):
        start(tmp_path, told, "synthetic:tiny", "prose", setting)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("model", "kind", "reason"),
    [
        ("synthetic:nope", "prose", "synthetic presets are"),
        ("nope", "prose", "model 'nope' is unknown"),
        ("synthetic:tiny", "poem", "workload.kind: 'poem' is not allowed"),
    ],
)
def test_models_and_prompts_that_cannot_be_had(
    tmp_path: Path, told: Told, model: str, kind: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        start(tmp_path, told, model, kind, "depth = 1")
    assert not (tmp_path / "results").exists()


def test_what_an_arm_calls_a_wrong_task_is_wrong_usage(tmp_path: Path, told: Told) -> None:
    path = tmp_path / "t.toml"
    text = SUITE.replace("MODEL", "synthetic:tiny").replace("SETTING", "depth = 1")
    path.write_text(text.replace('kind = "KIND"', 'history = "seeded"\nsequences = 1000'))
    with pytest.raises(UsageError, match="arm 'a': sequences = 1000: from 1 to 16"):
        ab.start(str(path), told.watch, root=tmp_path / "results")


def test_variables_of_this_process_are_not_the_arms(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T12: an arm's process does not see them, so they can neither refuse nor change a suite."""
    monkeypatch.setenv("KVBENCH_DEPTH", "many")
    with pytest.raises(UsageError, match=r"dpeth = 1 \(.*t\.toml, arm b\)"):
        start(tmp_path, told, "synthetic:tiny", "prose", "dpeth = 1")
