"""Decode one task on the reference decoder for a profile: ``python -m kvbench.engines.recorder``.

Reads a request from a file and writes its answer to another, so that stdout belongs to whatever
tool this runs under. It is never timed: a run that keeps its op log is slower than one that
does not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvbench.engines.conversing import CONVERSATION, conversation_task
from kvbench.engines.protocol import Task
from kvbench.engines.reference import HISTORY
from kvbench.errors import KvbenchError
from kvbench.records import Result
from kvbench.records.capture import Capture, Source

if TYPE_CHECKING:
    from kvbench.decoder.conversation import ConversationRun
    from kvbench.decoder.session import DecodeRun
    from kvbench.decoder.settings import DecoderSettings


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to decode, and where to write the ``Answer``."""

    arm: str
    model: str
    settings: dict[str, Any]
    prompts: list[list[int]]
    generate: int
    warmup: int
    answer: str
    """Path of the answer."""
    options: dict[str, Any] = {}
    """The task's: ``conversation``, ``history`` or nothing."""
    source: Source = "oplog"
    """What records: this process itself, or (nsys) the tool that it runs under."""


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Either an error in one line, or the result, with a capture if one was asked for."""

    error: str = ""
    result: Result | None = None
    capture: Capture | None = None


def record(request: Request) -> Answer:
    """Decode the request's task."""
    from kvbench.decoder.settings import parse
    from kvbench.device.capture import capture
    from kvbench.engines.cupti_trace import CuptiTrace

    keeps_log = request.source != "nsys"
    settings = msgspec.structs.replace(parse(request.settings), record=keeps_log)
    if request.source == "cupti":
        with CuptiTrace() as trace:
            done = _decode(request, settings)
        assert done.log is not None
        captured = trace.capture(
            done.log, request.arm, warmup=request.warmup, token_count=done.result.tokens
        )
        waits = msgspec.structs.replace(captured, waits=done.result.waits)
        return Answer(result=done.result, capture=waits)
    done = _decode(request, settings)
    if done.log is None:
        return Answer(result=done.result)
    import kvbench

    captured = capture(
        done.log,
        request.arm,
        tool=f"kvbench {kvbench.__version__} on {settings.device}",
        warmup=request.warmup,
        token_count=done.result.tokens,
        waits=done.result.waits,
    )
    return Answer(result=done.result, capture=captured)


def _decode(request: Request, settings: DecoderSettings) -> DecodeRun | ConversationRun:
    from kvbench.decoder import seeded
    from kvbench.decoder.conversation import run_conversations
    from kvbench.decoder.model import open_model
    from kvbench.decoder.session import DecodeTask, run_task

    model = open_model(request.model)
    if CONVERSATION not in request.options:
        history = request.options.get(HISTORY)
        task = DecodeTask(
            request.prompts,
            generate=request.generate,
            warmup=request.warmup,
            history=None if history is None else seeded.parse(history),
        )
        return run_task(model, settings, task)
    asked = Task(
        prompts=list(request.prompts),
        generate=request.generate,
        warmup=request.warmup,
        options=request.options,
    )
    return run_conversations(model, settings, conversation_task(asked))


def main(path: str) -> int:
    """The process's exit code: 0, or the error's own."""
    request = msgspec.json.decode(Path(path).read_bytes(), type=Request)
    code = 0
    try:
        answer = record(request)
    except KvbenchError as error:
        answer, code = Answer(error=" ".join(str(error).split())), error.exit_code
    Path(request.answer).write_bytes(msgspec.json.encode(answer))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
