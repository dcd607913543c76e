"""The OpenAI adapter against a stub; ``test_real_openai.py`` has llama.cpp's own server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvbench.decoder.model import open_model
from kvbench.engines import chat
from kvbench.engines.arm import Arm
from kvbench.engines.http import Event, Response
from kvbench.engines.openai import _fresh
from kvbench.engines.protocol import Reply, Task
from kvbench.engines.serve import EngineFailure
from kvbench.engines.supervisor import Timeouts, run_once
from kvbench.records import Failure
from tests.peers.arms import differences
from tests.peers.servers import running_stub

QUICK = Timeouts(hello=60, prepare=60, run=60, bye=10)
TASK = Task(prompts=["The quick brown fox", "jumps over the lazy dog"], generate=12, warmup=2)


def arm(url: str, **settings: Any) -> Arm:
    return Arm(name="o", engine="openai", settings={"url": url} | settings)


def test_the_key_comes_from_the_environment_and_is_redacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "sesame-123")
    with running_stub(tmp_path, {"status": 401, "echo_key": True}) as url:
        keyed = arm(url, api_key_env="THE_KEY", model="m")
        run = run_once(keyed, TASK, QUICK)
    assert isinstance(run.outcome, Failure)
    assert "***" in run.outcome.message and "sesame" not in run.outcome.message + run.stderr


def test_no_version_no_measurement(tmp_path: Path) -> None:
    with running_stub(tmp_path, {"anonymous": True}) as url:
        found = run_once(arm(url, model="m"), TASK, QUICK).outcome
        assert isinstance(found, Failure) and found.kind == "no-version"
        run = run_once(arm(url, model="m", version="mine-7"), TASK, QUICK)
    assert isinstance(run.outcome, Reply) and run.ready is not None
    assert run.ready.version == "mine-7" and any("stated" in note for note in run.ready.notes)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "url"),
        ({"url": "http://user:pw@h"}, "credentials"),
        ({"url": "http://127.0.0.1:1", "model": "m"}, "refused"),
        ({"url": "http://h", "temperature": 1}, "temperature"),
        ({"url": "http://h", "api_key_env": "NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE"),
    ],
)
def test_settings_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    found = run_once(Arm(name="o", engine="openai", settings=settings), TASK, QUICK).outcome
    assert isinstance(found, Failure) and words in found.message and "pw" not in found.message


def parsed(*chunks: str) -> Any:
    events = [Event(float(i), chunk.encode()) for i, chunk in enumerate(chunks)]
    return chat.parse(Response(200, b"", events, 0.0, 9.0))


USAGE = '{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
END = '{"choices":[{"text":"","finish_reason":"length"}]}'


def test_both_shapes_of_logprobs() -> None:
    shape = '{"choices":[{"text":"a","logprobs":{"tokens":["a"],"top_logprobs":[%s]}}]}'
    old = shape % '{"a":-0.1,"b":-2.0}'
    new = (
        '{"choices":[{"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","top_logprobs":'
        '[{"logprob":-0.1},{"logprob":-2.0}]}]}}]}'
    )
    for chunk in (old, new):
        stream = parsed(chunk, END, USAGE, "[DONE]")
        assert stream.pieces == ["a"] and stream.top2 == [(-1, -0.1, -1, -2.0)]
    assert parsed(shape % '{"a":0.0,"b":0.0}', END, USAGE).top2 == [None]


@pytest.mark.parametrize(
    "chunks",
    [(END,), (USAGE,), ("{",), ('{"error":{"message":"x"}}',), ('{"choices":3}',)],
)
def test_broken_streams(chunks: tuple[str, ...]) -> None:
    with pytest.raises(EngineFailure):
        parsed(*chunks)


def test_reasoning_is_part_of_the_text() -> None:
    thought = '{"choices":[{"delta":{"reasoning_content":"hm "}}]}'
    said = '{"choices":[{"delta":{"content":"yes"}}]}'
    assert parsed(thought, said, END, USAGE).text == "hm yes"


@pytest.mark.model
def test_nonces_differ_and_have_the_same_number_of_tokens() -> None:
    """A run whose prompt had another number of tokens would be another task, and INVALID."""
    tokenizer = open_model("smollm2").tokenizer
    assert tokenizer is not None
    prompts = [str(_fresh("The quick brown fox")) for _ in range(300)]
    assert len(set(prompts)) == 300 and len({len(tokenizer.encode(p)) for p in prompts}) == 1


def test_two_hundred_repetitions_of_a_deterministic_server_are_never_different(
    tmp_path: Path,
) -> None:
    """Issue number: identical deterministic servers are never called different."""
    tokens: list[list[int] | str] = [[7, i, 9] for i in range(4)]
    task = Task(prompts=tokens, generate=32, detail=True)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with running_stub(tmp_path / "a") as one, running_stub(tmp_path / "b") as other:
        stubs = [
            Arm(name="s", engine="llama-server", settings={"url": url, "probabilities": 0})
            for url in (one, other)
        ]
        assert differences(*stubs, task, repetitions=200) == []
