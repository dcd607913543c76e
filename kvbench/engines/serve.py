"""The arm's side of the protocol: a loop that lets a small class be an arm."""

from __future__ import annotations

import os
import sys
from typing import BinaryIO, Protocol

import msgspec

from kvbench.engines import protocol
from kvbench.errors import KvbenchError


class EngineFailure(KvbenchError):
    """An engine cannot do what was asked; sent to the harness as a failure message."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)


def refuse_options(task: protocol.Task, engine: str) -> None:
    """Raise EngineFailure for a task with options, which only the reference decoder has."""
    if task.options:
        raise EngineFailure(
            "option",
            f"{engine} has no task option {min(task.options)!r}: "
            "conversations and seeded histories need the engine reference",
        )


class Engine(Protocol):
    """What an adapter implements. Any method may raise KvbenchError to report a failure."""

    def hello(self) -> protocol.ArmHello:
        """Name, version receipt, capabilities."""

    def prepare(self, message: protocol.Prepare) -> protocol.Ready:
        """Validate settings and get ready to run."""

    def run(self, message: protocol.Run) -> protocol.Reply:
        """Decode one task."""

    def close(self) -> None:
        """Release everything; called once, also after failures."""


class Wire:
    """Stdin and stdout as message streams.

    Whatever libraries print to stdout goes to stderr from here on: only messages may use it.
    """

    def __init__(self) -> None:
        self._in: BinaryIO = sys.stdin.buffer
        self._out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)

    def send(self, message: protocol.FromArm) -> None:
        """Write one message, whole."""
        view = memoryview(protocol.encode(message))
        while view:
            view = view[self._out.write(view) :]

    def receive(self) -> protocol.ToArm | None:
        """The next message; None at the end of input. Raises ``msgspec.DecodeError``."""
        line = self._in.readline()
        return protocol.decode_to_arm(line) if line else None


def serve(engine: Engine, wire: Wire | None = None) -> int:
    """Answer messages until bye or the end of input. The process's exit code."""
    wire = wire or Wire()
    try:
        while True:
            message = wire.receive()
            if message is None or isinstance(message, protocol.Bye):
                return 0
            wire.send(_answer(engine, message))
    except msgspec.DecodeError as error:
        wire.send(protocol.ArmFailed(kind="protocol", message=f"not a valid message: {error}"))
        return 2
    finally:
        engine.close()


def _answer(engine: Engine, message: protocol.ToArm) -> protocol.FromArm:
    try:
        match message:
            case protocol.HarnessHello():
                return engine.hello()
            case protocol.Prepare():
                return engine.prepare(message)
            case protocol.Run():
                return engine.run(message)
            case _:
                raise EngineFailure("protocol", "unexpected message")
    except EngineFailure as failure:
        return protocol.ArmFailed(kind=failure.kind, message=str(failure))
    except KvbenchError as error:
        return protocol.ArmFailed(kind=type(error).__name__, message=str(error))
    except MemoryError:
        return protocol.ArmFailed(kind="memory", message="out of memory")
