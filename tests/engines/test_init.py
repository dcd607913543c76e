"""``kvbench init``: every starter is a suite as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.cli import main
from kvbench.cli.init import KINDS
from kvbench.engines.arm import engine_names
from kvbench.spec import load_suite
from kvbench.spec.starters import STARTERS


@pytest.mark.parametrize("kind", KINDS)
def test_a_starter_is_valid_and_comments_its_own_name(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    assert main(["init", kind, str(file)]) == 0
    suite, cells = load_suite(str(file))
    assert len(cells) == 1 and {arm.engine for arm in suite.arms} <= set(engine_names())
    assert f"kvbench ab {file}" in file.read_text()


def test_nothing_is_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("precious")
    assert main(["init", "urls", str(file)]) == 2
    assert "--force" in capsys.readouterr().err and file.read_text() == "precious"
    assert main(["init", "urls", str(file), "--force"]) == 0
    assert file.read_text() != "precious"


def test_the_command_offers_every_starter() -> None:
    assert tuple(STARTERS) == KINDS


def test_an_unwritable_place_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "urls", str(tmp_path / "no" / "dir.toml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
