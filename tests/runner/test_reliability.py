"""Issue 6, reliability: whatever ends the runner, no finished run is lost or counted twice.

The runner is a real ``kvbench ab`` process; what it printed as finished is the witness.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvbench.environment import fingerprint_hash
from kvbench.records import RunLine, VoidLine, read_journal
from kvbench.records.journal import Journal
from kvbench.records.lines import decode_line, encode_line
from runner.store import judge_again, load_summary
from tests.runner.conftest import processes_of, write_suite

ROOT = Path(__file__).resolve().parents[2]
STEP = re.compile(rb"\[\d+/\d+\] (\S+) block (\d+) run (\d+) (\S+): [\d.]+ tok/s")


def kvbench(*words: str, cwd: Path, **more: Any) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "kvbench", *words]
    return subprocess.Popen(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more
    )


def completed(*words: str, cwd: Path, **more: Any) -> tuple[int, str]:
    """Exit code and stderr of a kvbench that runs to its end."""
    with kvbench(*words, cwd=cwd, **more) as process:
        _, said = process.communicate(timeout=300)
    return process.returncode, said.decode()


def assert_none_left(arm: Path) -> None:
    """The guard takes the arm down as soon as the harness is gone."""
    deadline = time.monotonic() + 20
    while (left := processes_of(arm)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def directory_of(root: Path) -> Path | None:
    found = list((root / "results").glob("*/plan.json"))
    return found[0].parent if found else None


def end_often(tmp_path: Path, arm: Path, times: int, how: signal.Signals, longest_s: float) -> None:
    """Start, end at a random moment, resume ... until it has been ended ``times`` times.

    However fast the machine is: an experiment that is complete makes room for the next one.
    """
    ended = 0
    for number in itertools.count():
        place = tmp_path / str(number)
        place.mkdir()
        ended += end_often_in(place, arm, times - ended, how, longest_s)
        if ended == times:
            return


def end_often_in(place: Path, arm: Path, times: int, how: signal.Signals, longest_s: float) -> int:
    """One experiment to its end; returns how often it was ended before, at most ``times``."""
    suite = write_suite(place, {"a": {}, "b": {}}, f"blocks = {2 * min(10, max(2, times // 8))}")
    finished: set[tuple[bytes, ...]] = set()
    ended = code = 0
    while True:
        directory = directory_of(place)
        words = ["ab", suite] if directory is None else ["ab", "--resume", str(directory)]
        with kvbench(*words, cwd=place) as process:
            try:
                moment = random.uniform(0.2, longest_s) if ended < times else 300
                _, said = process.communicate(timeout=moment)
            except subprocess.TimeoutExpired:
                process.send_signal(how)
                _, said = process.communicate(timeout=60)
            code = process.returncode
        assert_none_left(arm)
        finished |= set(STEP.findall(said))
        if code == 0:
            break
        assert code in {-how, 130}, said.decode()
        ended += 1
    directory = directory_of(place)
    assert directory is not None
    check_evidence(directory, finished)
    return ended


def check_evidence(directory: Path, finished: set[tuple[bytes, ...]]) -> None:
    content = read_journal(directory)
    assert content.torn is None
    runs = [line for line in content.lines if isinstance(line, RunLine)]
    keys = [(r.cell, r.block, r.attempt, r.position) for r in runs]
    assert len(set(keys)) == len(keys), "a run was counted twice"
    kept = {(r.cell, r.block + 1, r.position + 1, r.arm) for r in runs}
    for cell, block, position, arm in finished:
        assert (cell.decode(), int(block), int(position), arm.decode()) in kept, "a run was lost"
    voided = {(v.block, v.attempt) for v in content.lines if isinstance(v, VoidLine)}
    summary = judge_again(directory)
    assert summary == load_summary(directory) and summary.finished is not None
    (cell_summary,) = summary.cells
    counted = [run for run in cell_summary.runs if run.counted]
    assert len(counted) == 4 * summary.blocks
    for run in counted:
        assert (run.block, run.attempt) not in voided
    assert len(cell_summary.runs) == len(runs)


def test_killed_at_random_moments(tmp_path: Path, own_arm: Path) -> None:
    """A few of the moments; the long test has 200."""
    end_often(tmp_path, own_arm, 4, signal.SIGKILL, 2.0)


@pytest.mark.long
def test_killed_at_200_random_moments(tmp_path: Path, own_arm: Path) -> None:
    end_often(tmp_path, own_arm, 200, signal.SIGKILL, 2.0)


@pytest.mark.parametrize(
    "how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_stopped_politely(tmp_path: Path, own_arm: Path, how: signal.Signals) -> None:
    end_often(tmp_path, own_arm, 2, how, 2.0)


def test_a_stop_says_how_to_go_on_and_leaves_a_report(tmp_path: Path, own_arm: Path) -> None:
    suite = write_suite(tmp_path, {"a": {"delay_s": 0.05}, "b": {"delay_s": 0.05}}, "blocks = 40")
    with kvbench("ab", suite, cwd=tmp_path) as process:
        assert process.stderr is not None
        said = b""
        while b"block 1 run 2" not in said:
            said += process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    directory = directory_of(tmp_path)
    assert directory is not None
    assert f"go on with: kvbench ab --resume results/{directory.name}" in rest.decode()
    summary = load_summary(directory)
    assert summary.finished is None and len(summary.cells[0].runs) >= 2
    assert_none_left(own_arm)


def test_closed_stdout_is_no_reason_to_lose_runs(tmp_path: Path, own_arm: Path) -> None:
    suite = write_suite(tmp_path, {"a": {}, "b": {}})
    with kvbench("ab", suite, cwd=tmp_path) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(timeout=120) == 141, said.decode()
    directory = directory_of(tmp_path)
    assert directory is not None
    check_evidence(directory, set(STEP.findall(said)))


def test_a_full_disk_stops_it_with_one_line_and_it_goes_on_later(
    tmp_path: Path, own_arm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file-size limit stands for the full disk: the kernel refuses in the middle of a write."""
    import resource

    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # the limit would cut off .pyc files too
    suite = write_suite(tmp_path, {"a": {}, "b": {}}, "blocks = 4")

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))

    code, said = completed("ab", suite, cwd=tmp_path, preexec_fn=limit)
    assert code == 2
    assert "journal.jsonl: cannot append: File too large" in said.strip().splitlines()[-1]
    directory = directory_of(tmp_path)
    assert directory is not None
    code, rest = completed("ab", "--resume", directory.name, cwd=tmp_path)
    assert code == 0, rest
    check_evidence(directory, set(STEP.findall((said + rest).encode())))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished experiment, to be copied."""
    place = tmp_path_factory.mktemp("template")
    suite = write_suite(place, {"a": {}, "b": {}})
    code, said = completed("ab", suite, cwd=place)
    assert code == 0, said
    return place


@pytest.fixture
def stored(template: Path, tmp_path: Path) -> Path:
    """The directory of a finished experiment of its own; its suite lies in ``tmp_path``."""
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    directory = directory_of(tmp_path)
    assert directory is not None
    return directory


def test_a_torn_line_is_noted_on_resume(tmp_path: Path, stored: Path) -> None:
    journal = stored / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-2]) + lines[-2][:200])
    code, said = completed("ab", "--resume", str(stored), cwd=tmp_path)
    assert code == 0, said
    summary = load_summary(stored)
    assert any("resumed: went on; line 9 dropped" in note for note in summary.notes)
    check_evidence(stored, set())


def test_a_second_runner_is_refused(tmp_path: Path, stored: Path) -> None:
    with Journal(stored):
        code, said = completed("ab", "--resume", str(stored), cwd=tmp_path)
    assert code == 2 and f"process {os.getpid()}" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("suite", "suite: workload.generate"),
        ("suite, not named again", "suite: workload.generate"),
        ("suite, an arm", "suite: arms[0].settings.token, suite: workload.generate"),
        ("program", "arm a in main: program_sha256"),
        ("machine", "environment: machine.cpu: 'another' before"),
    ],
)
def test_resume_refuses_what_changed_and_names_the_field(
    tmp_path: Path, stored: Path, change: str, said: str
) -> None:
    suite = tmp_path / "syn.toml"
    if change.startswith("suite, an arm"):
        text = suite.read_text().replace("settings = {  }", "settings = { token = 7 }", 1)
        suite.write_text(text.replace("generate = 4", "generate = 5"))
    elif change.startswith("suite"):
        suite.write_text(suite.read_text().replace("generate = 4", "generate = 5"))
    else:
        rewrite_environments(stored, change)
    words = ["ab", str(suite), "--resume", str(stored)]
    if change == "suite, not named again":
        move_source(stored, suite)
        del words[1]
    code, err = completed(*words, cwd=tmp_path)
    assert code == 2 and said in err
    code, err = completed(*words, "--resume-anyway", cwd=tmp_path)
    assert code == 0, err
    notes = load_summary(stored).notes
    assert any("the user insisted although this changed" in note for note in notes)


def move_source(directory: Path, suite: Path) -> None:
    """As if the experiment had been started from this copy of the suite."""
    plan = msgspec.json.decode((directory / "plan.json").read_bytes())
    plan["suite_ref"] = str(suite)
    (directory / "plan.json").write_bytes(msgspec.json.encode(plan))


def rewrite_environments(directory: Path, change: str) -> None:
    """As if the journal had been written on another machine, or by another program."""
    lines = []
    for raw in (directory / "journal.jsonl").read_bytes().splitlines():
        line = decode_line(raw)
        if isinstance(line, RunLine):
            path = directory / "environments" / f"{line.environment}.json"
            content = msgspec.json.decode(path.read_bytes())
            if change == "machine":
                content["machine"]["cpu"] = "another"
            else:
                content["arm"]["program_sha256"] = "0" * 64
            digest = fingerprint_hash(content)
            (path.parent / f"{digest}.json").write_bytes(msgspec.json.encode(content))
            line = msgspec.structs.replace(line, environment=digest)
        lines.append(encode_line(line))
    (directory / "journal.jsonl").write_bytes(b"\n".join(lines) + b"\n")
