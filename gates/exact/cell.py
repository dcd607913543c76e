"""The exactness gate of one cell: control passes first, then every arm against the baseline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from gates.exact.compare import drift, first_divergence, margin, shared_evidence
from gates.exact.words import NEAR_TIE, conclude, describe, explain
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Reply, Task
from kvbench.engines.supervisor import ArmError, ArmSession, Timeouts
from kvbench.records import Failure
from kvbench.records.gate import Check, Divergence, GateReport, Outcome

NO_EVIDENCE = "no tokens, text or hashes that both outputs have: there is nothing to compare"
MOST_INVESTIGATED = 4
"""Arms whose first mismatch is repeated and compared teacher-forced; that takes three runs."""


@dataclass(frozen=True, slots=True)
class CellOptions:
    """How to gate a cell."""

    gate: str = "exact"
    timeouts: Timeouts = field(default_factory=Timeouts)
    budget_s: float = float("inf")
    """What is not compared after this many seconds is reported as failed, not left out."""
    bytes_may_differ: bool = False
    """Declared: arms move different bytes (device-resident against host-resident)."""
    control_every_arm: bool = False
    """Also run each arm against itself, as for servers; else only after a difference."""
    progress: Callable[[str], None] = lambda _: None
    notes: tuple[str, ...] = ()
    """Into the report as they are."""


def gate_cell(
    baseline: Arm, arms: Sequence[Arm], tasks: Sequence[Task], options: CellOptions | None = None
) -> GateReport:
    """Compare every arm with the baseline on every task. Never raises for what an arm does."""
    return _Cell(baseline, arms, tasks, options or CellOptions()).report()


class _Cell:
    def __init__(
        self, baseline: Arm, arms: Sequence[Arm], tasks: Sequence[Task], options: CellOptions
    ) -> None:
        self.baseline, self.arms, self.options = baseline, arms, options
        self.tasks = [msgspec.structs.replace(task, detail=True) for task in tasks]
        self.deadline = time.monotonic() + options.budget_s
        self.investigated: set[str] = set()
        self.versions: dict[str, str] = {}
        self.capabilities: dict[str, set[str]] = {}

    def report(self) -> GateReport:
        started = time.monotonic()
        checks, wanted = self._control(self.baseline)
        if all(check.outcome == "passed" for check in checks):
            for arm in self.arms:
                checks += self._compare(arm, wanted)
        return GateReport(
            gate=self.options.gate,
            checks=tuple(checks),
            baseline=self.baseline.name,
            versions=self.versions,
            notes=self._notes(),
            seconds=time.monotonic() - started,
        )

    def _notes(self) -> tuple[str, ...]:
        declared = self.options.bytes_may_differ
        return self.options.notes + (("bytes moved were declared to differ",) if declared else ())

    def _control(self, arm: Arm) -> tuple[list[Check], list[Reply | Failure]]:
        """An arm against itself, in two fresh processes, every task in both."""
        started = time.monotonic()
        first, second = self._run(arm, self.tasks), self._run(arm, self.tasks)
        seconds = time.monotonic() - started
        checks = []
        for task, one, other in zip(self.tasks, first, second, strict=True):
            checks.append(self._control_check(arm, task, one, other, seconds / len(self.tasks)))
        return checks, first

    def _control_check(
        self, arm: Arm, task: Task, one: Reply | Failure, other: Reply | Failure, seconds: float
    ) -> Check:
        name = _name(arm, task, "against itself")
        for run in (one, other):
            if isinstance(run, Failure):
                return _failed(name, arm, task, run, seconds)
        assert isinstance(one, Reply) and isinstance(other, Reply)
        if not shared_evidence(one, other):
            return Check(name, "not checked", NO_EVIDENCE, arm.name, task.name, seconds=seconds)
        difference = first_divergence(one, other)
        if difference is None:
            message = "repeats its own output"
            return Check(name, "passed", message, arm.name, task.name, "same", seconds=seconds)
        return Check(
            name=name,
            outcome="ungateable",
            message=f"does not repeat its own output: {describe(difference)}",
            arm=arm.name,
            task=task.name,
            conclusion="irreproducible",
            divergence=difference,
            repeats=False,
            seconds=seconds,
        )

    def _compare(self, arm: Arm, wanted: list[Reply | Failure]) -> list[Check]:
        checks: list[Check] = []
        if self.options.control_every_arm:
            checks, given = self._control(arm)
        else:
            given = self._run(arm, self.tasks)
        for task, one, other in zip(self.tasks, wanted, given, strict=True):
            assert isinstance(one, Reply)
            started = time.monotonic()
            check = self._check(arm, task, one, other)
            spent = check.seconds + time.monotonic() - started
            checks.append(msgspec.structs.replace(check, seconds=spent))
        return checks

    def _check(self, arm: Arm, task: Task, one: Reply, other: Reply | Failure) -> Check:
        name = _name(arm, task, f"against {self.baseline.name}")
        if isinstance(other, Failure):
            return _failed(name, arm, task, other, 0.0)
        compared = shared_evidence(one, other)
        if not compared:
            return Check(name, "not checked", NO_EVIDENCE, arm.name, task.name)
        difference = first_divergence(one, other, bytes_may_differ=self.options.bytes_may_differ)
        if difference is None:
            message = f"{other.result.tokens} tokens equal by {', '.join(compared)}"
            if found := drift(one, other):
                message += f"; log probabilities differ by up to {found:.2g}"
            return Check(name, "passed", message, arm.name, task.name, "same")
        return self._mismatch(name, arm, task, one, other, difference)

    def _mismatch(
        self, name: str, arm: Arm, task: Task, one: Reply, other: Reply, difference: Divergence
    ) -> Check:
        """Name the difference; an arm's first one is also repeated and compared teacher-forced."""
        repeats, forced, clear = None, "", False
        if arm.name not in self.investigated and len(self.investigated) < MOST_INVESTIGATED:
            self.investigated.add(arm.name)
            again = self._run(arm, [task])[0]
            if isinstance(again, Reply):
                repeats = first_divergence(other, again, bytes_may_differ=True) is None
            forced, clear = self._forced(arm, task, one)
        conclusion = conclude(difference, repeats, clear)
        explained = explain(conclusion, repeats)
        return Check(
            name=name,
            outcome="mismatch",
            message="; ".join(filter(None, (describe(difference), explained))),
            arm=arm.name,
            task=task.name,
            conclusion=conclusion,
            divergence=difference,
            repeats=repeats,
            forced=forced,
        )

    def _forced(self, arm: Arm, task: Task, one: Reply) -> tuple[str, bool]:
        """Both arms on the baseline's tokens: what differs, and whether at a clear margin."""
        able = all("teacher" in self.capabilities.get(a.name, ()) for a in (self.baseline, arm))
        if not able or one.tokens is None:
            return "not available: an arm cannot be forced onto given tokens", False
        task = msgspec.structs.replace(task, teacher=one.tokens)
        left, right = self._run(self.baseline, [task])[0], self._run(arm, [task])[0]
        if isinstance(left, Failure) or isinstance(right, Failure):
            return "not available: an arm failed on given tokens", False
        if left.top2 is None or right.top2 is None:
            return "not available: an arm gives no logits", False
        total = differing = clear = 0
        for mine, theirs in zip(left.top2, right.top2, strict=True):
            for a, b in zip(mine, theirs, strict=False):
                total += 1
                if a is None or b is None or tuple(a) == tuple(b):
                    continue
                differing += 1
                sure = max(margin(a) or 0.0, margin(b) or 0.0)
                clear += a[0] != b[0] and sure > NEAR_TIE
        words = (
            f"on the same tokens, the two best candidates differ at {differing} of {total} "
            f"positions, the choice at a clear margin at {clear}"
        )
        return words, clear > 0

    def _timeouts(self) -> Timeouts:
        """The options' own, none longer than what is left of the budget."""
        left = max(0.1, self.deadline - time.monotonic())
        given = self.options.timeouts
        return msgspec.structs.replace(
            given, prepare=min(given.prepare, left), run=min(given.run, left)
        )

    def _run(self, arm: Arm, tasks: Sequence[Task]) -> list[Reply | Failure]:
        """All tasks in one fresh process; a new one after a failure that ended it."""
        outcomes: list[Reply | Failure] = []
        while len(outcomes) < len(tasks):
            if time.monotonic() > self.deadline:
                late = Failure(
                    "budget", f"not run: the gate's {self.options.budget_s:g} s are over"
                )
                return outcomes + [late] * (len(tasks) - len(outcomes))
            before = len(outcomes)
            try:
                with ArmSession(arm, self._timeouts()) as session:
                    session.prepare()
                    self.versions[arm.name] = session.version
                    if session.hello is not None:
                        self.capabilities[arm.name] = set(session.hello.capabilities)
                    for task in tasks[before:]:
                        if time.monotonic() > self.deadline:
                            break
                        self.options.progress(f"{arm.name}: {task.name}")
                        outcomes.append(session.run(task))
            except ArmError as error:
                if len(outcomes) == before:
                    # Not even the first task: another process would fail likewise.
                    return outcomes + [error.failure] * (len(tasks) - len(outcomes))
                outcomes.append(error.failure)
        return outcomes


def _name(arm: Arm, task: Task, what: str) -> str:
    return f"{arm.name} {what}: {task.name}" if task.name else f"{arm.name} {what}"


def _failed(name: str, arm: Arm, task: Task, failure: Failure, seconds: float) -> Check:
    outcome: Outcome = "failed"
    message = f"{failure.kind}: {failure.message}"
    return Check(name, outcome, message, arm.name, task.name, seconds=seconds)
