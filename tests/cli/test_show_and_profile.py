"""Issue: `kvbench show` redraws, `kvbench profile --import` reads any program's capture."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kvbench.cli import main
from kvbench.records import decode_summary, encode_summary
from tests.profile.exports import Export, origin
from tests.report import samples


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """An experiment whose requirement was not met."""
    directory = tmp_path / "results" / "20260101-120000-smoke"
    directory.mkdir(parents=True)
    (directory / "plan.json").write_text("{}")
    summary = samples.summary(exit_code=1, requirement="faster", requirement_met=False)
    (directory / "summary.json").write_bytes(encode_summary(summary))
    return directory


def test_show_redraws_by_id_and_by_path(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--root", str(stored.parent)]
    for ref in ([stored.name, *root], [str(stored)]):
        assert main(["show", *ref]) == 1
        assert "pipelined is faster than ordered: +57.3%" in capsys.readouterr().out


def test_show_json_is_the_summary(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(stored), "--json"]) == 1
    assert decode_summary(capsys.readouterr().out.encode()).run == samples.summary().run


def test_show_writes_reports_again(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", str(stored), "--reports"])
    assert (stored / "report.html").is_file() and (stored / "report.md").is_file()
    assert capsys.readouterr().err.count("wrote ") == 2


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", b'{"v": 1}'])
def test_a_damaged_summary_is_one_line(
    stored: Path, capsys: pytest.CaptureFixture[str], damage: bytes
) -> None:
    (stored / "summary.json").write_bytes(damage)
    assert main(["show", str(stored)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "summary.json" in err


def test_show_of_nothing_says_where_it_looked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "nowhere", "--root", str(tmp_path)]) == 2
    assert f"looked in {tmp_path}" in capsys.readouterr().err


def test_one_command_reproduces_the_origins_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [
        origin(tmp_path / "stock.sqlite", 36_199, 1_142, 26_133),
        origin(tmp_path / "elided.sqlite", 12_370, 1_142, 26_133),
    ]
    imports = [part for path in files for part in ("--import", str(path))]
    assert main(["profile", *imports, "--tokens", "1536"]) == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[1:4] for line in out.splitlines() if "cuda" in line}
    assert rows["cudaStreamSynchronize"] == ["36,199", "12,370", "-65.8%"]
    assert rows["cudaGraphLaunch"] == ["1,142", "1,142", "="]
    assert rows["cudaMemcpyAsync"] == ["26,133", "26,133", "="]
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 80


def test_profile_writes_files_that_can_be_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = Export(tmp_path / "mine.sqlite")
    export.calls(3, 5)
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", (100, 300, 0, 1, 7, 9, 0, 4, 4))
    path, out = export.save(), tmp_path / "out"
    assert main(["profile", "--import", str(path), "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["calls"][0]["arms"]["mine"]["calls"] == 5
    assert sorted(p.name for p in out.iterdir()) == [
        "0-mine.capture.json", "profile.md", "timeline.svg", "trace.json",
    ]  # fmt: skip
    assert "API calls: mine" in (out / "profile.md").read_text()
    again = ["--import", str(out / "0-mine.capture.json")]
    assert main(["profile", *again, *again]) == 0
    shown = capsys.readouterr().out
    assert "mine (A), mine-2 (B)" in shown
    assert re.search(r"cudaMemcpyAsync\s+5\s+5\s+=", shown)


def test_profile_refuses_what_is_no_capture_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "x.json"
    other.write_text('{"traceEvents": []}')
    for path, says in ((other, "not a capture"), (tmp_path / "none", "cannot read")):
        assert main(["profile", "--import", str(path)]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and says in err
    assert main(["profile"]) == 2
