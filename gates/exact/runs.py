"""Runs for a gate: tasks in fresh processes of an arm, within a budget; failures are data."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Reply, Task
from kvbench.engines.supervisor import ArmError, ArmSession, Timeouts
from kvbench.records import Failure


@dataclass(slots=True)
class Runs:
    """Starts processes and remembers what they said of themselves."""

    timeouts: Timeouts
    budget_s: float
    progress: Callable[[str], None]
    versions: dict[str, str] = field(default_factory=dict)
    effective: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings by arm, as the program itself reports them."""
    notes: list[str] = field(default_factory=list)
    _capabilities: dict[str, set[str]] = field(default_factory=dict)
    _deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self._deadline = time.monotonic() + self.budget_s

    def can(self, arm: Arm, capability: str) -> bool:
        """Whether the arm, which has run before, said that it can."""
        return capability in self._capabilities.get(arm.name, ())

    def run(self, arm: Arm, tasks: Sequence[Task]) -> list[Reply | Failure]:
        """All tasks in one fresh process; a new one after a failure that ended it."""
        outcomes: list[Reply | Failure] = []
        while len(outcomes) < len(tasks):
            if time.monotonic() > self._deadline:
                late = Failure("budget", f"not run: the gate's {self.budget_s:g} s are over")
                return outcomes + [late] * (len(tasks) - len(outcomes))
            before = len(outcomes)
            try:
                with ArmSession(arm, self._timeouts()) as session:
                    session.prepare()
                    self._remember(arm, session)
                    for task in tasks[before:]:
                        if time.monotonic() > self._deadline:
                            break
                        self.progress(f"{arm.name}: {task.name}")
                        outcomes.append(session.run(task))
            except ArmError as error:
                if len(outcomes) == before:
                    # Not even the first task: another process would fail likewise.
                    return outcomes + [error.failure] * (len(tasks) - len(outcomes))
                outcomes.append(error.failure)
        return outcomes

    def one(self, arm: Arm, task: Task) -> Reply | Failure:
        """One task in a fresh process."""
        return self.run(arm, [task])[0]

    def _remember(self, arm: Arm, session: ArmSession) -> None:
        assert session.hello is not None and session.ready is not None
        self.versions[arm.name] = session.version
        self.effective[arm.name] = session.ready.effective
        self._capabilities[arm.name] = set(session.hello.capabilities)
        for note in session.ready.notes:
            if (line := f"{arm.name}: {note}") not in self.notes:
                self.notes.append(line)

    def _timeouts(self) -> Timeouts:
        """The given ones, none longer than what is left of the budget."""
        left = max(0.1, self._deadline - time.monotonic())
        given = self.timeouts
        return msgspec.structs.replace(
            given, prepare=min(given.prepare, left), run=min(given.run, left)
        )
