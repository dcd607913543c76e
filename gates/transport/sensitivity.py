"""Gate: every planted fault is caught by some gate, every time, and a clean run by none.

For each fault, in the scenario where it shows: the output hash under real threads and under
explorer seeds, the race check, and the delivery gate. The same detectors then look at every
scenario without a fault, and must find nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gates.registry import GateOptions
from gates.transport import delivery
from gates.transport.harness import IssueOrder, model_of, reference
from gates.transport.harness import run as run_scenario
from gates.transport.scenarios import BY_NAME, SCENARIOS, Scenario
from kvbench.decoder.faults import FAULTS, DelayHooks, Fault
from kvbench.decoder.session import DecodeTask, run_task
from kvbench.decoder.settings import parse
from kvbench.device.cpu.explorer import Picker
from kvbench.device.races import check
from kvbench.records.gate import Check, GateReport, Outcome

SEEDS = 12
TASK = "task"
"""The scenario of faults in how a task is set up, before the transport has any part in it."""


@dataclass(frozen=True, slots=True)
class Detection:
    """What each detector says of one run: True if it objects."""

    threads: bool
    """The output hash under real threads differs (or the run ends in an error)."""
    orders: int
    """Explorer seeds, of ``SEEDS``, under which the output differs."""
    races: bool
    delivery: bool

    @property
    def certain(self) -> bool:
        """Whether a detector that does not depend on luck objects: every time it is run."""
        return self.races or self.delivery or self.orders > 0

    def words(self) -> str:
        """Which detectors objected."""
        found = [name for name in ("threads", "races", "delivery") if getattr(self, name)]
        return ", ".join([*found, f"{self.orders} of {SEEDS} orders"])


def run(options: GateOptions) -> GateReport:
    """The matrix fault x detector, then every scenario clean."""
    started = time.monotonic()
    found = []
    for fault in FAULTS:
        options.progress(f"sensitivity: {fault.name}")
        found.append(_fault(fault))
    clean = [s for s in SCENARIOS if not options.quick or s.name in {f.scenario for f in FAULTS}]
    for scenario in clean:
        options.progress(f"sensitivity: {scenario.name}, clean")
        found.append(_clean(scenario))
    return GateReport(gate="sensitivity", checks=tuple(found), seconds=time.monotonic() - started)


def detect(fault: Fault) -> Detection:
    """Run a fault's scenario under every detector."""
    if fault.scenario == TASK:
        differs = _task(fault.hooks) != _task(DelayHooks)
        return Detection(differs, SEEDS if differs else 0, races=False, delivery=False)
    return observe(BY_NAME[fault.scenario], fault.hooks)


def observe(scenario: Scenario, hooks: Callable[[], DelayHooks]) -> Detection:
    """All detectors on one scenario."""
    want = reference(scenario).digest
    threads = run_scenario(scenario, hooks=hooks())
    plain = run_scenario(scenario, hooks=hooks(), picker=IssueOrder(0))
    orders = 0
    for seed in range(SEEDS):
        out = run_scenario(scenario, hooks=hooks(), picker=Picker(seed))
        orders += bool(out.digest != want or out.error or out.leaked)
    strict = scenario.name in delivery.STRICT
    problem = strict and bool(delivery.verify(plain.log, delivery.pitch_of(scenario))[0])
    return Detection(
        bool(threads.digest != want or threads.error),
        orders,
        bool(check(plain.log, limit=1)),
        problem,
    )


def _fault(fault: Fault) -> Check:
    seen = detect(fault)
    outcome: Outcome = "passed" if seen.certain else "mismatch"
    message = f"caught by {seen.words()}" if seen.certain else f"slips through: {seen.words()}"
    return Check(
        name=fault.name,
        outcome=outcome,
        message=message,
        details={
            "kind": fault.kind,
            "threads": seen.threads,
            "orders": seen.orders,
            "races": seen.races,
            "delivery": seen.delivery,
        },
    )


def _clean(scenario: Scenario) -> Check:
    seen = observe(scenario, DelayHooks)
    outcome: Outcome = "mismatch" if seen.certain or seen.threads else "passed"
    message = f"false alarm: {seen.words()}" if outcome != "passed" else "no detector objects"
    return Check(name=f"clean: {scenario.name}", outcome=outcome, message=message)


def _task(hooks: Callable[[], DelayHooks]) -> str:
    """The hash of a two-prompt task on the bundled decoder."""
    model = model_of("synthetic:tiny")
    task = DecodeTask([[3, 1, 4, 1, 5, 9, 2, 6] * 3, [2, 7, 1, 8, 2, 8] * 5], generate=4)
    return run_task(model, parse({"depth": 1}), task, hooks=hooks()).result.hashes["logits"]
