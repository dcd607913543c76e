"""Gate: less memory, failing allocations and small budgets change no byte and leave nothing behind.

Every creation step of the transport is made to fail in turn, once and for good, on one device of
two or on the only one; budgets and headroom are set so that the ring is declined (T11-T15).
After each: the same output, nothing leaked, and the reason in the record.
"""

from __future__ import annotations

import time
from typing import Any

from gates.registry import GateOptions
from gates.transport.harness import IssueOrder, Outcome, reference
from gates.transport.harness import run as run_scenario
from gates.transport.scenarios import BY_NAME, Scenario
from kvbench.decoder.faults import DelayHooks
from kvbench.records.gate import Check, GateReport
from kvbench.records.gate import Outcome as Verdict

STEPS = ("ring", "event", "queue", "plan", "graph")
SCENARIOS = ("decode", "host_carry", "resize", "graphs", "split", "memory")


class FailAt(DelayHooks):
    """The ``at``-th creation of kind ``step`` fails, and with ``forever`` all after it."""

    def __init__(self, step: str, at: int, *, forever: bool) -> None:
        super().__init__()
        self.step, self.at, self.forever = step, at, forever
        self.seen = self.failed = 0

    def fail(self, step: str) -> bool:
        """Whether this one does."""
        if step != self.step:
            return False
        self.seen += 1
        fails = self.seen > self.at if self.forever else self.seen == self.at + 1
        self.failed += fails
        return fails


class Count(DelayHooks):
    """Counts creations and lets all succeed; ``ready`` is how many precede the transport's."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[str, int] = {}

    def fail(self, step: str) -> bool:
        """Never."""
        self.steps[step] = self.steps.get(step, 0) + 1
        return False


def run(options: GateOptions) -> GateReport:
    """Failures of every step in every scenario; budgets and headroom in one."""
    started = time.monotonic()
    names = ("decode", "resize", "graphs") if options.quick else SCENARIOS
    found: list[Check] = []
    for name in names:
        options.progress(f"recovery: {name}")
        found += _failures(BY_NAME[name])
    found += _declines(BY_NAME["decode"])
    return GateReport(gate="recovery", checks=tuple(found), seconds=time.monotonic() - started)


def _failures(scenario: Scenario) -> list[Check]:
    counting, ordered = Count(), Count()
    run_scenario(scenario, hooks=counting, picker=IssueOrder(0))
    run_scenario(scenario, hooks=ordered, picker=IssueOrder(0), depth=0)
    found = []
    for step in STEPS:
        own = ordered.steps.get(step, 0) if step not in ("graph", "plan") else 0
        total = counting.steps.get(step, 0)
        places = sorted({own, (own + total) // 2, total - 1}) if total > own else []
        found += [
            _one(scenario, step, at, forever=forever) for at in places for forever in (False, True)
        ]
    return found


def _one(scenario: Scenario, step: str, at: int, *, forever: bool) -> Check:
    hooks = FailAt(step, at, forever=forever)
    out = run_scenario(scenario, hooks=hooks, picker=IssueOrder(0))
    problem = _problem(scenario, out)
    declined = sum((t.declines for t in out.telemetry), start=type(out.telemetry[0].declines)())
    if not problem and not hooks.failed:
        problem = "the failure was not reached"
    if not problem and not declined:
        problem = "the decline is not in the record"
    how = "from here on" if forever else "once"
    message = problem or f"fails {how}: same output, recorded as {dict(declined)}"
    verdict: Verdict = "mismatch" if problem else "passed"
    return Check(name=f"{scenario.name}: {step} {at} {how}", outcome=verdict, message=message)


def _declines(scenario: Scenario) -> list[Check]:
    cases: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("budget of 1 MiB for wide slots", {"budget_mib": 1, "row_multiple": 4096}, "budget"),
        ("no cap", {"budget_mib": 0}, ""),
        ("headroom of 64 GiB", {"headroom_mib": 65_536}, ""),
    )
    found = []
    for name, overrides, reason in cases:
        out = run_scenario(scenario, picker=IssueOrder(0), **overrides)
        problem = _problem(scenario, out) if "row_multiple" not in overrides else out.error
        recorded = {r for t in out.telemetry for r in t.declines}
        if not problem and reason and reason not in recorded:
            problem = f"declined as {recorded or 'nothing'}, not as {reason}"
        verdict: Verdict = "mismatch" if problem else "passed"
        found.append(Check(name=name, outcome=verdict, message=problem or "same output"))
    return found


def _problem(scenario: Scenario, out: Outcome) -> str:
    if out.error:
        return out.error
    if out.leaked:
        return f"left behind: {out.leaked}"
    return "" if out.digest == reference(scenario).digest else "another output"
