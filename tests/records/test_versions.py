"""Issue 6, upkeep: journals of every version that was ever written are read for ever."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from kvbench.records import GateLine, NoteLine, RunLine, VoidLine, read_journal
from kvbench.records.lines import SCHEMA_VERSION, DamagedLineError, decode_line, encode_line
from kvbench.records.migrate import STEPS, UnknownVersionError, migrate

JOURNALS = Path(__file__).with_name("journals")


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
def test_a_journal_of_each_version_is_read(version: int, tmp_path: Path) -> None:
    shutil.copy(JOURNALS / f"v{version}.jsonl", tmp_path / "journal.jsonl")
    content = read_journal(tmp_path)
    assert content.torn is None
    assert {type(line) for line in content.lines} == {GateLine, RunLine, VoidLine, NoteLine}
    good, bad = (line for line in content.lines if isinstance(line, RunLine))
    assert good.result is not None and good.result.tokens == 32
    assert good.result.waits == {"token": (32, 1, 0)} and good.result.bytes["early"] == 10
    assert bad.failure is not None and bad.failure.kind == "crash"


def test_what_is_written_today_is_the_newest_stored_journal_byte_for_byte() -> None:
    data = (JOURNALS / f"v{SCHEMA_VERSION}.jsonl").read_bytes()
    again = b"".join(encode_line(decode_line(raw)) + b"\n" for raw in data.splitlines())
    assert again == data


def test_every_older_version_has_a_step() -> None:
    assert set(STEPS) == set(range(1, SCHEMA_VERSION))


def test_steps_are_taken_one_after_the_other() -> None:
    def renamed(line: dict[str, Any]) -> dict[str, Any]:
        line["seconds"] = line.pop("s")
        return line

    steps = {1: renamed, 2: lambda line: {**line, "unit": "s"}}
    found = migrate({"v": 1, "s": 2}, 3, steps)
    assert found == {"v": 3, "seconds": 2, "unit": "s"}
    assert migrate({"v": 3}, 3, steps) == {"v": 3}
    for odd in ({"v": 4}, {"v": 0}, {}, {"v": "1"}):
        with pytest.raises(UnknownVersionError, match="reads up to 3"):
            migrate(odd, 3, steps)


def test_a_line_of_this_version_with_a_key_too_many_is_damaged_not_old() -> None:
    import hashlib

    body = b'{"kind":"note","v":1,"run":"r","what":"w","message":"m","at":1.0,"more":2'
    digest = hashlib.blake2b(body, digest_size=8).hexdigest().encode()
    with pytest.raises(DamagedLineError, match="unknown field `more`"):
        decode_line(body + b',"sum":"' + digest + b'"}')
