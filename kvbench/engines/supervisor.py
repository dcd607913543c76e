"""Starts an arm's process, talks the protocol with it, and ends it; every way it can fail is data.

with ArmSession(arm) as session:      hello
    session.prepare()                 prepare → ready
    reply = session.run(task)         run → result

run_once(arm, task)                   all of it in a fresh process, failures as a record
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import NoReturn, Self

import msgspec

from kvbench.engines import protocol
from kvbench.engines.arm import Arm
from kvbench.engines.process import EndOfOutput, Exit, Limits, LineProcess, LineTimeout, OutputLimit
from kvbench.errors import ArmFailure
from kvbench.records import Failure, Result

HARNESS = "kvbench"
CLOCK_SLACK_S = 0.005
"""An arm may not claim to have decoded for longer than the harness waited, less this much."""


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds each phase may take. ``silence`` bounds the time between two lines of a run,
    ``total`` the time from the start of the process to the end of its last phase but bye."""

    hello: float = 60.0
    prepare: float = 600.0
    run: float = 3600.0
    bye: float = 10.0
    silence: float | None = None
    total: float | None = None


class ArmError(ArmFailure):
    """An arm failed; ``failure`` is what goes into the record."""

    def __init__(self, arm: str, failure: Failure) -> None:
        self.arm, self.failure = arm, failure
        super().__init__(f"arm {arm!r}: {failure.message}")


@dataclass(slots=True)
class ArmRun:
    """All that one fresh process of an arm gave: an outcome, and what explains it."""

    outcome: protocol.Reply | Failure
    hello: protocol.ArmHello | None = None
    ready: protocol.Ready | None = None
    exit: Exit | None = None
    stderr: str = ""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by the harness's clock: ``hello``, ``prepare``, ``run``, ``bye``."""

    @property
    def result(self) -> Result | Failure:
        """What the record stores."""
        return self.outcome if isinstance(self.outcome, Failure) else self.outcome.result


class ArmSession:
    """One process of an arm, for one or more tasks. Failures raise ArmError.

    After a time-out, a crash or a breach of the protocol the process is gone; after a failure that
    the arm itself reported, the next task may be tried.
    """

    def __init__(
        self, arm: Arm, timeouts: Timeouts | None = None, limits: Limits | None = None
    ) -> None:
        self.arm = arm
        self.timeouts = timeouts or Timeouts()
        self.hello: protocol.ArmHello | None = None
        self.ready: protocol.Ready | None = None
        self.phases: dict[str, float] = {}
        self._limits = limits
        self._process: LineProcess | None = None
        self._runs = 0
        self._until = math.inf

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close(0.0)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(self.timeouts.bye if kind is None else 0.0)

    def _start(self) -> None:
        if self.timeouts.total is not None:
            self._until = time.monotonic() + self.timeouts.total
        self._process = LineProcess(
            self.arm.argv(),
            env=self.arm.environ(),
            cwd=self.arm.cwd,
            limits=self._limits,
        )
        ours = protocol.HarnessHello(protocol=protocol.PROTOCOL, harness=HARNESS)
        hello = self._ask("hello", ours, self.timeouts.hello)
        if not isinstance(hello, protocol.ArmHello):
            self._breach(f"answered hello with {_kind(hello)}")
        if hello.protocol != protocol.PROTOCOL:
            self._breach(f"speaks protocol {hello.protocol}, not {protocol.PROTOCOL}")
        self.hello = hello

    def prepare(self) -> protocol.Ready:
        """Send the arm its model and settings, and wait until it is ready."""
        ask = protocol.Prepare(model=self.arm.model, settings=self.arm.settings)
        ready = self._ask("prepare", ask, self.timeouts.prepare)
        if not isinstance(ready, protocol.Ready):
            self._breach(f"answered prepare with {_kind(ready)}")
        self.ready = ready
        if not self.version:
            self._breach("gave no version; without one there is no measurement", "no-version")
        return ready

    @property
    def version(self) -> str:
        """The arm's version receipt."""
        assert self.hello is not None
        return ((self.ready.version if self.ready else "") or self.hello.version).strip()

    def run(self, task: protocol.Task) -> protocol.Reply:
        """One task. The reply's shape has been checked against the task."""
        self._runs += 1
        started = time.monotonic()
        reply = self._ask("run", protocol.Run(id=self._runs, task=task), self.timeouts.run)
        if not isinstance(reply, protocol.Reply):
            self._breach(f"answered run with {_kind(reply)}")
        waited = time.monotonic() - started
        if reply.id != self._runs:
            self._breach(f"answered task {reply.id} when asked for task {self._runs}")
        if (fault := _implausible(reply, task, waited)) is not None:
            self._breach(fault)
        return reply

    def close(self, patience_s: float | None = None) -> Exit | None:
        """Say bye, wait ``patience_s`` (default: the bye time-out), then end the tree."""
        process = self._process
        if process is None:
            return None
        if process.exit is None:
            patience = self.timeouts.bye if patience_s is None else patience_s
            started = time.monotonic()
            if patience > 0:
                with contextlib.suppress(LineTimeout, EndOfOutput):
                    process.write_line(protocol.encode(protocol.Bye()), started + patience)
            process.close(patience)
            self.phases["bye"] = time.monotonic() - started
        return process.exit

    @property
    def stderr(self) -> str:
        """What is kept of the arm's stderr."""
        return self._process.stderr() if self._process else ""

    def _ask(self, phase: str, message: protocol.ToArm, timeout_s: float) -> protocol.FromArm:
        """Send ``message``; the first answer that is not progress."""
        process = self._process
        if process is None or process.exit is not None:
            raise ArmError(self.arm.name, Failure("closed", "the arm's process has ended"))
        started = time.monotonic()
        deadline = min(started + timeout_s, self._until)
        try:
            process.write_line(protocol.encode(message), deadline)
            while True:
                silence = self.timeouts.silence if phase == "run" else None
                limit = deadline if silence is None else min(deadline, time.monotonic() + silence)
                answer = protocol.decode_from_arm(process.read_line(limit))
                if isinstance(answer, protocol.ArmFailed):
                    raise ArmError(self.arm.name, Failure(answer.kind, _one_line(answer.message)))
                if not isinstance(answer, protocol.Progress):
                    return answer
        except LineTimeout:
            waited = time.monotonic() - started
            self._fail("timeout", f"{phase}: no answer within {waited:.1f} s")
        except OutputLimit as error:
            self._fail("output", f"{phase}: it printed {error}")
        except EndOfOutput:
            self._crashed(phase)
        except msgspec.DecodeError as error:
            self._fail(
                "protocol", f"{phase}: its line is not a valid answer: {_one_line(str(error))}"
            )
        finally:
            self.phases[phase] = time.monotonic() - started

    def _crashed(self, phase: str) -> NoReturn:
        assert self._process is not None
        ended = self._process.close(patience_s=1.0)
        kind = "start" if ended.start_error else "crash"
        said = _last_line(self._process.stderr())
        self._fail(kind, f"{phase}: the arm {ended.describe()}" + (f": {said}" if said else ""))

    def _breach(self, message: str, kind: str = "protocol") -> NoReturn:
        self._fail(kind, f"the arm {message}")

    def _fail(self, kind: str, message: str) -> NoReturn:
        self.close(0.0)
        raise ArmError(self.arm.name, Failure(kind, message))


def run_once(
    arm: Arm,
    task: protocol.Task,
    timeouts: Timeouts | None = None,
    limits: Limits | None = None,
) -> ArmRun:
    """Run one task in a fresh process. Failures of the arm are in the outcome, never raised."""
    session = ArmSession(arm, timeouts, limits)
    outcome: protocol.Reply | Failure
    try:
        with session:
            session.prepare()
            outcome = session.run(task)
    except ArmError as error:
        outcome = error.failure
    return ArmRun(
        outcome=outcome,
        hello=session.hello,
        ready=session.ready,
        exit=session.close(),
        stderr=session.stderr,
        phases=session.phases,
    )


def _implausible(reply: protocol.Reply, task: protocol.Task, waited_s: float) -> str | None:
    """What is impossible about a reply, or None."""
    result = reply.result
    if not 0 <= result.decode_s <= waited_s + CLOCK_SLACK_S:
        return f"claims {result.decode_s:.3f} s of decoding in a run of {waited_s:.3f} s"
    if result.tokens < 0:
        return f"claims {result.tokens} tokens"
    for name in ("tokens", "pieces", "top2", "texts", "stops", "logprobs"):
        rows = getattr(reply, name)
        if rows is not None and len(rows) != len(task.prompts):
            return f"gave {name} for {len(rows)} sequences of {len(task.prompts)}"
    return None


def _kind(message: protocol.FromArm) -> str:
    return repr(message.__struct_config__.tag)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return _one_line(lines[-1]) if lines else ""


def _one_line(text: str, limit: int = 1000) -> str:
    """Printable, one line, bounded: what an arm says goes into records and terminals."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
