"""Issue 6, reliability: the journal keeps every finished run, once, whatever happens to it."""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import UsageError
from kvbench.records import (
    Failure,
    Journal,
    NoteLine,
    Result,
    RunLine,
    full_result,
    read_journal,
)
from kvbench.records.lines import MAX_LINE_BYTES, DamagedLineError, decode_line, encode_line


def run_line(number: int = 0, result: Result | None = None, **changes: object) -> RunLine:
    line = RunLine(
        v=1,
        run="r",
        cell="main",
        block=number // 4,
        attempt=0,
        position=number % 4,
        pass_=number % 4 // 2,
        arm="ab"[number % 2],
        started=1.0,
        wall_s=0.5,
        environment="e",
        result=result or Result(tokens=32, decode_s=1.0 + number),
    )
    return msgspec.structs.replace(line, **changes)


def test_lines_are_plain_json_with_version_and_checksum() -> None:
    data = encode_line(run_line())
    plain = msgspec.json.decode(data)
    assert plain["v"] == 1 and plain["kind"] == "run" and plain["pass"] == 0
    assert decode_line(data) == run_line()


@given(st.data())
def test_every_changed_byte_of_a_line_is_noticed(data: st.DataObject) -> None:
    line = encode_line(run_line())
    index = data.draw(st.integers(0, len(line) - 1))
    flip = data.draw(st.integers(1, 255))
    with pytest.raises(DamagedLineError):
        decode_line(line[:index] + bytes([line[index] ^ flip]) + line[index + 1 :])


def test_a_run_has_either_a_result_or_a_failure() -> None:
    with pytest.raises(ValueError, match="either"):
        run_line(failure=Failure("crashed", "exit 1"))


@pytest.mark.parametrize("keep", range(1, 200, 7))
def test_a_torn_last_line_is_dropped_with_a_note_and_written_over(
    tmp_path: Path, keep: int
) -> None:
    with Journal(tmp_path) as journal:
        journal.append(run_line(0))
        end = journal.path.stat().st_size
        journal.append(run_line(1))
    os.truncate(journal.path, end + keep)
    content = read_journal(tmp_path)
    assert content.lines == (run_line(0),)
    assert content.torn is not None and content.torn.startswith("line 2 dropped")
    with Journal(tmp_path) as journal:
        assert journal.torn == content.torn
        journal.append(run_line(2))
    assert read_journal(tmp_path).lines == (run_line(0), run_line(2))


def test_damage_before_the_last_line_is_refused_with_its_number(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        for number in range(3):
            journal.append(run_line(number))
    data = bytearray(journal.path.read_bytes())
    data[data.index(b"\n") + 20] ^= 1
    journal.path.write_bytes(data)
    with pytest.raises(UsageError, match="line 2 is damaged"):
        read_journal(tmp_path)


def test_a_heavy_result_is_spilled_and_comes_back_whole(tmp_path: Path) -> None:
    heavy = Result(
        tokens=1,
        decode_s=1.0,
        telemetry={"plan": ["x" * 40] * 50},
        counters={f"call{n}": n for n in range(60)},
        waits={f"site{n}": (n, 0, 0) for n in range(60)},
        metrics={"m": 1.5},
    )
    with Journal(tmp_path) as journal:
        journal.append(run_line(0, heavy))
    assert max(map(len, journal.path.read_bytes().splitlines())) <= MAX_LINE_BYTES
    (line,) = read_journal(tmp_path).lines
    assert isinstance(line, RunLine) and line.result is not None
    assert line.result.telemetry == {} and line.result.metrics == {"m": 1.5}
    assert full_result(line, tmp_path) == heavy
    (side,) = (tmp_path / "details").iterdir()
    side.write_bytes(side.read_bytes().replace(b"call1", b"call2"))
    with pytest.raises(UsageError, match="damaged"):
        full_result(line, tmp_path)


def _try_to_write(directory: Path, answer: multiprocessing.Queue[str]) -> None:
    try:
        Journal(directory)
    except UsageError as error:
        answer.put(str(error))
    else:
        answer.put("opened")


def test_a_second_writer_is_refused_and_told_who_writes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answer: multiprocessing.Queue[str] = context.Queue()
    with Journal(tmp_path):
        child = context.Process(target=_try_to_write, args=(tmp_path, answer))
        child.start()
        said = answer.get(timeout=60)
        child.join()
    assert f"process {os.getpid()}" in said
    Journal(tmp_path).close()


def test_an_append_that_the_disk_refuses_leaves_whole_lines_only(tmp_path: Path) -> None:
    """A file-size limit stands for a full disk: the write stops in the middle of the line."""
    with Journal(tmp_path) as journal:
        journal.append(run_line(0))
        size = journal.path.stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, hard))
        try:
            with pytest.raises(UsageError, match="cannot append"):
                journal.append(run_line(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert journal.path.stat().st_size == size
        journal.append(run_line(2))
    content = read_journal(tmp_path)
    assert content.lines == (run_line(0), run_line(2)) and content.torn is None


names = st.text(max_size=20)
results = st.builds(
    Result,
    tokens=st.integers(1, 2**40),
    decode_s=st.floats(1e-9, 1e9),
    metrics=st.dictionaries(names, st.floats(allow_nan=False, allow_infinity=False), max_size=40),
    hashes=st.dictionaries(st.sampled_from(["tokens", "logits", "audit"]), st.just("0" * 64)),
    bytes=st.dictionaries(st.sampled_from(["early", "late", "store"]), st.integers(0, 2**60)),
    waits=st.dictionaries(names, st.tuples(*[st.integers(0, 2**30)] * 3), max_size=40),
    counters=st.dictionaries(names, st.integers(0, 2**60), max_size=40),
    telemetry=st.dictionaries(names, st.text(max_size=200), max_size=20),
)


@given(st.lists(results, max_size=6))
def test_whatever_an_arm_reports_comes_back_as_it_was(given_results: list[Result]) -> None:
    """In lines of at most 2 KB, side files included."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        with Journal(directory) as journal:
            for number, result in enumerate(given_results):
                journal.append(run_line(number, result))
        lines = read_journal(directory).lines
        assert max(map(len, journal.path.read_bytes().splitlines()), default=0) < MAX_LINE_BYTES
        back = [full_result(line, directory) for line in lines if isinstance(line, RunLine)]
        assert back == given_results
        for line, result in zip(lines, given_results, strict=True):
            assert isinstance(line, RunLine) and line.result is not None
            assert (line.result.hashes, line.result.bytes) == (result.hashes, result.bytes)


def test_notes_and_runs_keep_their_order(tmp_path: Path) -> None:
    note = NoteLine(v=1, run="r", what="resume", message="went on", at=2.0)
    with Journal(tmp_path) as journal:
        journal.append(run_line(0))
        journal.append(note)
    assert read_journal(tmp_path).lines == (run_line(0), note)
