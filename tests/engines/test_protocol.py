"""The protocol's messages and its document."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.engines import protocol
from kvbench.records import Result

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/PROTOCOL.md").read_text()

finite = st.floats(allow_nan=False, allow_infinity=False)
ids = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=3)
words = st.text(max_size=20)
results = st.builds(
    Result,
    tokens=st.integers(0, 10**9),
    decode_s=finite,
    metrics=st.dictionaries(words, finite, max_size=3),
    hashes=st.dictionaries(words, words, max_size=3),
    bytes=st.dictionaries(words, st.integers(0, 2**60), max_size=3),
    waits=st.dictionaries(words, st.tuples(*[st.integers(0, 99)] * 3), max_size=2),
)
top2 = st.none() | st.tuples(st.integers(0, 99), finite, st.integers(0, 99), finite)


@given(
    st.builds(
        protocol.Reply,
        id=st.integers(0, 99),
        result=results,
        tokens=st.none() | ids,
        top2=st.none() | st.lists(st.lists(top2, max_size=3), max_size=2),
        texts=st.none() | st.lists(words, max_size=2),
    )
)
def test_a_reply_survives_the_wire_on_one_line(reply: protocol.Reply) -> None:
    line = protocol.encode(reply)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert protocol.decode_from_arm(line) == reply


@given(
    st.builds(
        protocol.Run,
        id=st.integers(0, 99),
        task=st.builds(
            protocol.Task,
            prompts=st.lists(st.lists(st.integers(0, 99), max_size=3) | words, max_size=3),
            generate=st.integers(0, 99),
            teacher=st.none() | ids,
        ),
    )
)
def test_a_task_survives_the_wire(run: protocol.Run) -> None:
    assert protocol.decode_to_arm(protocol.encode(run)) == run


@given(st.binary(max_size=200))
def test_no_line_does_more_than_raise_a_decode_error(line: bytes) -> None:
    with contextlib.suppress(msgspec.DecodeError):
        protocol.decode_from_arm(line)


def test_unknown_fields_are_refused_on_both_sides() -> None:
    with pytest.raises(msgspec.ValidationError, match="wrm"):
        protocol.decode_to_arm(b'{"type":"run","id":1,"task":{"prompts":[],"generate":1,"wrm":2}}')
    with pytest.raises(msgspec.ValidationError, match="nam"):
        protocol.decode_from_arm(b'{"type":"failure","kind":"x","message":"y","nam":1}')


def test_the_document_shows_the_example_that_is_tested() -> None:
    shown = re.search(r"<!-- example: (\S+) -->\n```python\n(.*?)```", DOCUMENT, re.DOTALL)
    assert shown is not None
    source = (ROOT / shown[1]).read_text()
    assert shown[2] == source
    assert len(source.splitlines()) <= 60


@pytest.mark.parametrize(
    "message",
    [
        protocol.HarnessHello,
        protocol.Prepare,
        protocol.Run,
        protocol.Task,
        protocol.ArmHello,
        protocol.Ready,
        protocol.Progress,
        protocol.Reply,
        protocol.ArmFailed,
        Result,
    ],
)
def test_the_document_names_every_field(message: type[msgspec.Struct]) -> None:
    for name in message.__struct_fields__:
        assert f"`{name}`" in DOCUMENT, f"{message.__name__}.{name}"
