"""Issue 6: bundle and verify, compare, history, export, clean, on one real stored experiment."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner

from kvbench.cli import main
from kvbench.cli.frame import group
from kvbench.errors import UsageError
from kvbench.records import Summary, Verdict, encode_summary
from kvbench.records.journal import Journal
from kvbench.records.lines import decode_line, encode_line
from kvbench.report.benchstat import render_benchstat
from kvbench.report.experiment_junit import render_junit
from kvbench.report.github import render_annotations
from runner import ab
from runner.across import compare_runs, history
from runner.bundle import differences, verify_bundle, write_bundle
from runner.clean import select
from runner.store import load_summary
from tests.runner.conftest import Told, write_suite


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("evidence")
    arms = {"a": {"delay_s": 0.01, "spin": True}, "b": {"delay_s": 0.005, "spin": True}}
    grid = "[grid]\nworkload.generate = [2, 3]\n"
    suite = write_suite(place, arms, "blocks = 2", tables=grid)
    return ab.start(suite, Told().watch, root=place / "results").directory


@pytest.fixture
def stored(template: Path, tmp_path: Path) -> Path:
    target = tmp_path / "results" / template.name
    shutil.copytree(template, target)
    return target


def test_a_bundle_comes_to_the_same_verdict_anywhere(stored: Path, tmp_path: Path) -> None:
    bundle = write_bundle(stored, tmp_path / "x.zip")
    again = write_bundle(stored, tmp_path / "y.zip")
    assert bundle.read_bytes() == again.read_bytes()
    shutil.rmtree(stored)
    verified = verify_bundle(bundle)
    assert verified.differences == [] and verified.found == verified.claimed
    done = CliRunner().invoke(group, ["verify", str(bundle)])
    assert done.exit_code == 0 and "the raw runs come to the verdicts" in done.output
    names = zipfile.ZipFile(bundle).namelist()
    assert {"plan.json", "journal.jsonl", "summary.json", "report.md"} <= set(names)


def rewrite(bundle: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """Change a bundle's files, with a manifest that fits, as a forger would."""
    import hashlib

    with zipfile.ZipFile(bundle) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files.pop("manifest.json"))
    change(files)
    manifest["sha256"] = {n: hashlib.sha256(data).hexdigest() for n, data in files.items()}
    with zipfile.ZipFile(bundle, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, data in files.items():
            archive.writestr(name, data)


def test_a_verdict_that_the_runs_do_not_give_is_seen(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write_bundle(stored, tmp_path / "x.zip")

    def forge(files: dict[str, bytes]) -> None:
        files["summary.json"] = files["summary.json"].replace(b'"FASTER"', b'"SLOWER"', 1)

    rewrite(bundle, forge)
    assert main(["verify", str(bundle)]) == 1
    assert "DIFFERS: generate=2: b: SLOWER is claimed, FASTER is found" in capsys.readouterr().out


def test_a_run_left_out_of_the_journal_is_seen(stored: Path, tmp_path: Path) -> None:
    bundle = write_bundle(stored, tmp_path / "x.zip")

    def forge(files: dict[str, bytes]) -> None:
        lines = files["journal.jsonl"].splitlines(keepends=True)
        files["journal.jsonl"] = b"".join(line for line in lines[:5] + lines[6:])

    rewrite(bundle, forge)
    assert verify_bundle(bundle).differences


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: f.update({"../evil": b"x"}), "does not belong into a bundle"),
        (lambda f: f.update({"details/../../evil.json": b"x"}), "does not belong"),
        (lambda f: f.pop("plan.json"), "not a stored experiment"),
        (lambda f: f.update({"journal.jsonl": b"x\n" + f["journal.jsonl"]}), "line 1 is damaged"),
    ],
)
def test_bundles_that_are_none(
    stored: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], None], said: str
) -> None:
    bundle = write_bundle(stored, tmp_path / "x.zip")
    rewrite(bundle, change)
    with pytest.raises(UsageError, match=said):
        verify_bundle(bundle)
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_no_byte_of_a_bundle_can_break_its_judge(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flip: int
) -> None:
    """A changed byte is refused in one line, or is one of the container's and changes no file."""
    (stored / "report.html").write_text("short")
    (stored / "report.md").write_text("short")
    whole = write_bundle(stored, tmp_path / "x.zip").read_bytes()
    claimed = load_summary(stored)
    monkeypatch.setattr("runner.bundle.judge_again", lambda _: claimed)
    damaged = tmp_path / "damaged.zip"
    for at in range(flip % 7, len(whole), 7):
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
        try:
            assert verify_bundle(damaged).claimed == claimed
        except UsageError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("name", ["plan.json", "summary.json", "journal.jsonl"])
def test_a_forged_file_is_named_within_its_bundle(stored: Path, tmp_path: Path, name: str) -> None:
    bundle = write_bundle(stored, tmp_path / "x.zip")
    with zipfile.ZipFile(bundle) as archive:
        files = {each: archive.read(each) for each in archive.namelist()}
    files[name] = b"[]\n[]\n"
    manifest = json.loads(files.pop("manifest.json"))
    manifest["sha256"][name] = hashlib.sha256(files[name]).hexdigest()
    with zipfile.ZipFile(bundle, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for each, data in files.items():
            archive.writestr(each, data)
    with pytest.raises(UsageError) as refused:
        verify_bundle(bundle)
    assert str(refused.value).startswith(f"{bundle}: {name}: ")


def test_bundle_says_in_json_what_it_wrote(stored: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.zip"
    done = CliRunner().invoke(group, ["bundle", str(stored), "-o", str(target), "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {"bundle": str(target), "bytes": target.stat().st_size}


def test_a_changed_byte_or_no_zip_is_refused(stored: Path, tmp_path: Path) -> None:
    bundle = write_bundle(stored, tmp_path / "x.zip")
    with zipfile.ZipFile(bundle) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files["report.md"] += b" "
    with zipfile.ZipFile(bundle, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    with pytest.raises(UsageError, match=r"report\.md was changed after it was packed"):
        verify_bundle(bundle)
    bundle.write_bytes(b"PK nonsense")
    with pytest.raises(UsageError, match="not a bundle"):
        verify_bundle(bundle)
    with pytest.raises(UsageError, match="cannot be read"):
        verify_bundle(tmp_path / "none.zip")


def test_details_of_another_version_are_no_difference_but_verdicts_are(stored: Path) -> None:
    now = load_summary(stored)
    cell = msgspec.structs.replace(now.cells[0], axes={})
    older = msgspec.structs.replace(now, kvbench="0.0.1", cells=(cell, now.cells[1]))
    assert differences(older, now) == []
    assert differences(msgspec.structs.replace(older, kvbench=now.kvbench), now)
    assert differences(msgspec.structs.replace(older, exit_code=4), now)


def test_a_doctored_summary_is_not_packed(stored: Path, tmp_path: Path) -> None:
    path = stored / "summary.json"
    path.write_bytes(path.read_bytes().replace(b'"FASTER"', b'"SLOWER"', 1))
    with pytest.raises(UsageError, match=r"summary\.json is not what its journal gives"):
        write_bundle(stored, tmp_path / "x.zip")


def variant(stored: Path, name: str, **changes: object) -> Path:
    """A copy of the stored experiment under another id, with a changed summary."""
    target = stored.parent / name
    shutil.copytree(stored, target)
    summary = msgspec.structs.replace(load_summary(stored), run=name, **changes)
    (target / "summary.json").write_bytes(encode_summary(summary))
    return target


def test_an_experiment_equals_itself_and_others_are_refused_by_field(stored: Path) -> None:
    summary = load_summary(stored)
    for arm in compare_runs(summary, summary):
        assert arm.change is not None and arm.change.ratio == pytest.approx(1)
    machine = {**summary.environment, "machine": {**summary.environment["machine"], "cpu": "x"}}
    other = msgspec.structs.replace(summary, environment=machine)
    with pytest.raises(UsageError, match=r"not comparable: environment machine\.cpu: "):
        compare_runs(summary, other)
    cell = msgspec.structs.replace(summary.cells[0], workload={"seed": 9})
    other = msgspec.structs.replace(summary, cells=(cell, summary.cells[1]))
    with pytest.raises(UsageError, match=r"generate=2: workload\.generate"):
        compare_runs(summary, other)
    fewer = msgspec.structs.replace(summary, cells=summary.cells[:1])
    with pytest.raises(UsageError, match="not comparable: cells"):
        compare_runs(summary, fewer)
    done = CliRunner().invoke(
        group, ["compare", str(stored), str(stored), "--root", str(stored.parent)]
    )
    assert done.exit_code == 0 and "generate=3: b against a" in done.output


def test_history_is_in_order_and_marks_steps_and_changes(stored: Path) -> None:
    summary = load_summary(stored)

    def at(number: int, ratio: float, cpu: str) -> None:
        c = msgspec.structs.replace(summary.cells[0].comparisons[0], ratio=ratio)
        cell = msgspec.structs.replace(summary.cells[0], comparisons=(c,))
        environment = {**summary.environment, "machine": {"cpu": cpu}}
        variant(
            stored,
            f"v{number}",
            cells=(cell,),
            started=summary.started + number,
            environment=environment,
        )

    for number in range(10):
        ratio = (1.1 if number < 5 else 1.3) + 0.001 * (number % 2)
        at(number, ratio, "one" if number < 7 else "two")
    shutil.rmtree(stored)
    points = history(stored.parent, "syn", "generate=2", None)
    assert [p.run for p in points] == [f"v{number}" for number in range(10)]
    assert [p.run for p in points if p.step] == ["v5"]
    assert [p.run for p in points if "machine.cpu" in p.changed] == ["v7"]
    done = CliRunner().invoke(group, ["history", "syn", "--root", str(stored.parent)])
    assert done.exit_code == 0 and "<- STEP" in done.output


def test_the_last_bits_of_a_figure_are_no_difference(stored: Path) -> None:
    """A bundle is judged again on another machine, whose libm may round exp otherwise."""
    claimed = load_summary(stored)

    def off(factor: float) -> Summary:
        cell = claimed.cells[0]
        (comparison,) = cell.comparisons
        assert comparison.ratio is not None
        changed = msgspec.structs.replace(comparison, ratio=comparison.ratio * factor)
        cells = (msgspec.structs.replace(cell, comparisons=(changed,)), *claimed.cells[1:])
        return msgspec.structs.replace(claimed, cells=cells)

    assert differences(claimed, off(1 + 4e-16)) == []
    assert differences(claimed, off(1 + 1e-6))


def test_history_leaves_nothing_out_and_names_another_workload(stored: Path) -> None:
    summary = load_summary(stored)
    (comparison,) = summary.cells[0].comparisons
    invalid = msgspec.structs.replace(
        comparison, verdict=Verdict.INVALID, ratio=None, ci95=None, ci90=None
    )
    cell = msgspec.structs.replace(
        summary.cells[0],
        comparisons=(invalid,),
        workload={**summary.cells[0].workload, "prompt_tokens": 99},
    )
    variant(stored, "later", cells=(cell,), started=summary.started + 1)
    points = history(stored.parent, "syn", "generate=2", None)
    assert [(p.comparison.verdict, p.changed) for p in points] == [
        (Verdict.FASTER, ()),
        (Verdict.INVALID, ("workload.prompt_tokens",)),
    ]
    done = CliRunner().invoke(
        group, ["history", "syn", "--root", str(stored.parent), "--cell", "generate=2"]
    )
    assert (
        done.exit_code == 0 and "INVALID      later changed: workload.prompt_tokens" in done.output
    )


def test_history_asks_which_cell(stored: Path) -> None:
    with pytest.raises(UsageError, match="--cell: choose one of generate=2, generate=3"):
        history(stored.parent, "syn", None, None)
    with pytest.raises(UsageError, match="--arm: 'z' is not there; there are b"):
        history(stored.parent, "syn", "generate=2", "z")
    with pytest.raises(UsageError, match="no stored experiment of suite 'other'"):
        history(stored.parent, "other", None, None)


CONFIG = re.compile(r"[a-z][^\s:A-Z]*: ?.*")
UNIT = re.compile(r"Unit \S+( \S+=\S+)+")
RESULT = re.compile(r"Benchmark[^a-z]\S* \d+( \S+ \S+)+")


def parse_benchmarks(text: str) -> list[tuple[str, dict[str, float]]]:
    """The published Go benchmark format; lines of no kind but comments are a fault here."""
    found = []
    for line in text.splitlines():
        if RESULT.fullmatch(line):
            name, iterations, *pairs = line.split()
            assert int(iterations) > 0
            values = {unit: float(v) for v, unit in zip(pairs[::2], pairs[1::2], strict=True)}
            found.append((name, values))
        else:
            assert line.startswith("#") or UNIT.fullmatch(line) or CONFIG.fullmatch(line), line
    return found


def test_benchstat_text_parses_by_the_published_format(stored: Path) -> None:
    summary = load_summary(stored)
    rows = parse_benchmarks(render_benchstat(summary))
    assert len(rows) == sum(len(cell.runs) for cell in summary.cells) == 16
    name, values = rows[0]
    assert name == "BenchmarkDecode/engine=program/workload.generate=2/arm=a"
    assert values == {"tok/s": pytest.approx(summary.cells[0].runs[0].tok_s), "hash-mismatch": 0}


def hostile(summary: Summary) -> Summary:
    nasty = "b\n::error::x\x00 <&> ]]> Ü"
    cell = summary.cells[0]
    comparison = msgspec.structs.replace(
        cell.comparisons[0], verdict=Verdict.INVALID, reason=nasty, arm=nasty
    )
    return msgspec.structs.replace(
        summary,
        cells=(msgspec.structs.replace(cell, comparisons=(comparison,)),),
        requirement="faster",
        requirement_met=False,
        exit_code=4,
    )


def test_junit_counts_and_survives_hostile_text(stored: Path) -> None:
    root = ElementTree.fromstring(render_junit(load_summary(stored)).encode())
    assert root.attrib["tests"] == "4" and root.attrib["failures"] == "0"
    for suite in root.iter("testsuite"):
        gate, compared = (float(case.attrib["time"]) for case in suite.iter("testcase"))
        assert compared > 0
        assert float(suite.attrib["time"]) == pytest.approx(gate + compared, abs=0.002)
    each = [float(suite.attrib["time"]) for suite in root.iter("testsuite")]
    assert float(root.attrib["time"]) == pytest.approx(sum(each), abs=0.002)
    bad = ElementTree.fromstring(render_junit(hostile(load_summary(stored))).encode())
    assert bad.attrib["failures"] == "1"
    unmet = msgspec.structs.replace(
        load_summary(stored), requirement="equivalent", requirement_met=False, exit_code=1
    )
    assert ElementTree.fromstring(render_junit(unmet).encode()).attrib["failures"] == "2"


def test_annotations_are_one_line_each(stored: Path) -> None:
    text = render_annotations(hostile(load_summary(stored)))
    assert len(text.splitlines()) == 2
    assert all(line.startswith("::error title=kvbench syn") for line in text.splitlines())
    fine = render_annotations(load_summary(stored)).splitlines()
    assert [line.split()[0] for line in fine] == ["::notice", "::notice"]


@pytest.mark.parametrize("kind", ["benchstat", "csv", "github", "junit", "markdown"])
def test_every_format_can_be_exported(stored: Path, tmp_path: Path, kind: str) -> None:
    words = ["export", str(stored), "--format", kind]
    done = CliRunner().invoke(group, words)
    assert done.exit_code == 0 and done.output
    target = tmp_path / f"out.{kind}"
    assert CliRunner().invoke(group, [*words, "-o", str(target)]).exit_code == 0
    assert target.read_text() == done.output
    if kind == "csv":
        rows = list(csv.DictReader(io.StringIO(done.output)))
        assert len(rows) == 16 and rows[0]["axis.workload.generate"] == "2"


def test_parquet_holds_what_csv_holds(stored: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    words = ["export", str(stored), "--format"]
    for kind in ("parquet", "csv"):
        done = CliRunner().invoke(group, [*words, kind, "-o", str(tmp_path / f"runs.{kind}")])
        assert done.exit_code == 0, done.output
    rows = parquet.read_table(tmp_path / "runs.parquet").to_pylist()
    texts = list(csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text())))
    assert len(rows) == 16 and list(rows[0]) == list(texts[0])
    assert [row["order"] for row in rows] == list(range(16))
    for row, text in zip(rows, texts, strict=True):
        assert row["axis.workload.generate"] == int(text["axis.workload.generate"])
        assert row["tok_s"] == float(text["tok_s"]) and row["arm"] == text["arm"]
        assert row["counted"] is True and row["violations"] == "" and row["failure"] is None
    missing = [*words, "parquet", "-o", str(tmp_path / "no/such/runs.parquet")]
    with pytest.raises(UsageError, match=r"runs\.parquet: cannot write"):
        CliRunner().invoke(group, missing, catch_exceptions=False)
    assert CliRunner().invoke(group, [*words, "parquet"]).exit_code == 2


def test_an_axis_of_several_types_is_text(stored: Path) -> None:
    from kvbench.report.tabular import runs_frame

    summary = load_summary(stored)
    values = iter([0, "auto"])
    cells = tuple(
        msgspec.structs.replace(cell, axes={"depth": next(values)}) for cell in summary.cells
    )
    frame = runs_frame(msgspec.structs.replace(summary, cells=cells))
    assert set(frame["axis.depth"]) == {"0", "auto"}


def test_parquet_without_its_library_is_one_clear_line(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pandas as pd

    from kvbench.report.tabular import write_table

    def missing(*_: object, **__: object) -> None:
        raise ImportError("no engine")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", missing)
    with pytest.raises(UsageError, match=r"pip install 'kvbench\[parquet\]'"):
        write_table(load_summary(stored), tmp_path / "x.parquet", "parquet")


def test_an_export_goes_to_the_file_that_was_named(stored: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs.txt"
    assert main(["export", str(stored), "--format", "csv", "-o", str(out)]) == 0
    assert len(out.read_text().splitlines()) == 1 + sum(
        len(cell.runs) for cell in load_summary(stored).cells
    )
    assert not (tmp_path / "runs.csv").exists()


def test_clean_takes_the_oldest_and_never_what_is_written(stored: Path) -> None:
    root = stored.parent
    old = variant(stored, "old")
    past = time.time() - 10 * 86_400
    for path in [*old.rglob("*"), old]:
        os.utime(path, (past, past))
    assert [item.path for item in select(False, root, 5, None)] == [old]
    size = select(False, root, None, 0)[1].bytes
    assert [item.path for item in select(False, root, None, size)] == [old]
    with Journal(stored):
        assert stored not in [item.path for item in select(False, root, None, 0)]
    words = ["clean", "--results", str(root), "--older-than", "5"]
    assert "nothing was deleted" in CliRunner().invoke(group, words).output and old.exists()
    assert CliRunner().invoke(group, [*words, "--yes"]).exit_code == 0
    assert not old.exists() and stored.exists()
    assert CliRunner().invoke(group, ["clean", "--results", str(root)]).exit_code == 2


def test_a_journal_line_of_another_version_is_named(stored: Path) -> None:
    journal = stored / "journal.jsonl"
    first, rest = journal.read_bytes().split(b"\n", 1)
    newer = msgspec.structs.replace(decode_line(first), v=99)
    journal.write_bytes(encode_line(newer) + b"\n" + rest)
    done = CliRunner().invoke(group, ["show", str(stored), "--judge"])
    assert isinstance(done.exception, UsageError) and "schema version 99" in str(done.exception)
