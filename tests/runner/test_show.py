"""Issue: a run that was killed can be looked at: its journal is judged as far as it goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.cli import main
from tests.runner.conftest import write_suite


def test_a_run_without_a_summary_is_judged_from_its_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = write_suite(tmp_path, {"a": {}, "b": {}})
    code = main(["ab", suite, "--out", str(tmp_path / "results")])
    (directory,) = (tmp_path / "results").iterdir()
    capsys.readouterr()
    assert main(["show", str(directory)]) == code
    with_summary = capsys.readouterr().out
    (directory / "summary.json").unlink()
    assert main(["show", str(directory)]) == code
    out, err = capsys.readouterr()
    assert out == with_summary
    assert err == f"{directory}: not finished; judging what its journal holds\n"
