"""The exactness gate of one cell: control passes first, then every arm against the baseline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from gates.exact.compare import drift, first_divergence, shared_evidence
from gates.exact.effective import setting_notes
from gates.exact.forced import compare_forced
from gates.exact.runs import Runs
from gates.exact.serial import serial_checks
from gates.exact.tolerance import label, within
from gates.exact.words import conclude, describe, explain
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Reply, Task
from kvbench.engines.supervisor import Timeouts
from kvbench.records import Failure
from kvbench.records.gate import Check, Divergence, GateReport, Outcome
from kvbench.spec import Tolerance

NO_EVIDENCE = "no tokens, text or hashes that both outputs have: there is nothing to compare"
MOST_INVESTIGATED = 2
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
    serial: bool = False
    """Also ask concurrent clients' questions one by one, and compare."""
    tolerance: Tolerance | None = None
    """Instead of equality; named in every output."""
    must_fail: Arm | None = None
    """A build or setting that is known to be wrong: unless it fails, nothing has passed."""
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
        # Forced runs need every token that was fed: none may have been decoded and discarded.
        self.tasks = [msgspec.structs.replace(task, detail=True, warmup=0) for task in tasks]
        self.runs = Runs(options.timeouts, options.budget_s, options.progress)
        self.investigated: set[str] = set()
        self.notes = list(options.notes)
        if options.bytes_may_differ:
            self.notes.append("bytes moved were declared to differ")
        if options.tolerance is not None:
            self.notes.append(label(options.tolerance))

    def report(self) -> GateReport:
        started = time.monotonic()
        checks, wanted = self._control(self.baseline)
        if all(check.outcome == "passed" for check in checks):
            for arm in self.arms:
                checks += self._compare(arm, wanted)
            checks += self._serial(wanted)
            if self.options.must_fail is not None:
                checks.append(self._negative_control(self.options.must_fail, wanted))
        return GateReport(
            gate=self.options.gate,
            checks=tuple(checks),
            baseline=self.baseline.name,
            versions=self.runs.versions,
            notes=(*self.notes, *self.runs.notes, *self._settings_apart()),
            seconds=time.monotonic() - started,
        )

    def _settings_apart(self) -> list[str]:
        """Where the arms' effective settings differ, and what was asked for but is otherwise."""
        return setting_notes(self.baseline, self.arms, self.runs.effective)

    def _serial(self, wanted: list[Reply | Failure]) -> list[Check]:
        checks: list[Check] = []
        for task, together in zip(self.tasks, wanted, strict=True):
            if self.options.serial and len(task.prompts) > 1 and isinstance(together, Reply):
                found, note = serial_checks(self.runs, self.baseline, self.arms, task, together)
                checks += found
                self.notes += [note] if note else []
        return checks

    def _negative_control(self, bad: Arm, wanted: list[Reply | Failure]) -> Check:
        """Passes only if the arm that is known to be wrong is found wrong."""
        found = self._compare(bad, wanted)
        name = f"{bad.name} must fail"
        caught = [check for check in found if check.outcome == "mismatch"]
        if caught:
            return Check(name, "passed", f"it does: {caught[0].message}", bad.name)
        words = found[0].message if found else "nothing was compared"
        message = f"the known-bad arm was not found wrong ({words}): this gate proves nothing"
        return Check(name, "not checked", message, bad.name)

    def _control(self, arm: Arm) -> tuple[list[Check], list[Reply | Failure]]:
        """An arm against itself, in two fresh processes, every task in both."""
        started = time.monotonic()
        first, second = self.runs.run(arm, self.tasks), self.runs.run(arm, self.tasks)
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
            given = self.runs.run(arm, self.tasks)
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
        if self.options.tolerance is not None:
            return within(self.runs, self.baseline, arm, task, one, self.options.tolerance, name)
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
            again = self.runs.one(arm, task)
            if isinstance(again, Reply):
                repeats = first_divergence(other, again, bytes_may_differ=True) is None
            compared = compare_forced(self.runs, self.baseline, arm, task, one.tokens)
            forced, clear = compared.describe(), compared.clear > 0
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


def _name(arm: Arm, task: Task, what: str) -> str:
    return f"{arm.name} {what}: {task.name}" if task.name else f"{arm.name} {what}"


def _failed(name: str, arm: Arm, task: Task, failure: Failure, seconds: float) -> Check:
    outcome: Outcome = "failed"
    message = f"{failure.kind}: {failure.message}"
    return Check(name, outcome, message, arm.name, task.name, seconds=seconds)
