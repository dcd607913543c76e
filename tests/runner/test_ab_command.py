"""``kvbench ab``'s command line: refusals are one line on stderr and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvbench.cli import main
from tests.runner.conftest import write_suite


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nope"], "suite 'nope': neither a bundled suite"),
        (["./none.toml"], "none.toml: cannot read the suite: No such file"),
        (["--resume", "x", "--blocks", "4"], "--resume goes on with the stored plan"),
        (["--resume", "x"], "x: no stored experiment (looked in results/; the latest: none)"),
        (["--executor", "dask"], "--executor dask and --address go together"),
        (["--address", "tcp://h:1"], "--executor dask and --address go together"),
        (["--require", "better"], "'better' is not one of"),
        (["main", "--blocks", "5"], "command line: blocks: 5 is odd"),
        (["main", "--delta", "0"], "command line: delta: expected `float` > 0.0"),
        (["main", "--model", ""], "command line: model: "),
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
    assert main(["ab", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_a_program_that_is_not_there_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the other arm's gate and rehearsal, and with nothing left behind."""
    monkeypatch.chdir(tmp_path)
    suite = Path(write_suite(tmp_path, {"a": {}, "b": {}}))
    text = suite.read_text()
    suite.write_text(text + '\n[[arms]]\nname = "c"\nengine = "program"\ncommand = ["./absent"]\n')
    assert main(["ab", str(suite)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "arm c: command: './absent' was not found; give a path or install it" in err
    assert not (tmp_path / "results").exists()


def test_json_is_one_document_and_the_exit_code_is_the_summarys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two equal arms over two blocks on any machine: not shown to be faster."""
    monkeypatch.chdir(tmp_path)
    suite = write_suite(tmp_path, {"a": {}, "b": {}}, 'gate = "none"')
    code = main(["ab", suite, "--require", "faster", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == code and code in (0, 1, 3)
    assert document["requirement"] == "faster" and document["requirement_met"] is (code == 0)


def test_an_unwritable_place_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = write_suite(tmp_path, {"a": {}, "b": {}})
    (tmp_path / "file").write_text("")
    assert main(["ab", suite, "--out", str(tmp_path / "file" / "results")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err
