"""Gate: any legal order of the queued operations gives the same bytes.

A failure prints its seed, and the shortest order found that shows it: everything in issue order
but for one queue that is held back from one of its items on.
"""

from __future__ import annotations

from collections.abc import Sequence

from gates.registry import GateOptions
from gates.transport import checks
from gates.transport.harness import IssueOrder, Outcome, reference
from gates.transport.harness import run as run_scenario
from gates.transport.scenarios import Scenario
from kvbench.device.cpu.explorer import Picker
from kvbench.records.gate import GateReport
from kvbench.records.gate import Outcome as Verdict

ORDERS = 1000
QUICK_ORDERS = 100
MAIN = "small"
"""The scenario that gets most of the orders: a multi-token run that is over in milliseconds."""
OTHERS = 6
"""Orders of every other scenario."""


class HoldBack(IssueOrder):
    """Issue order, but ``queue`` runs nothing from its item ``start`` on while others can."""

    def __init__(self, queue: str, start: int) -> None:
        super().__init__(0)
        self.queue, self.start = queue, start

    def eager(self) -> bool:
        """Let the host and the other queues run ahead once the queue is held."""
        return self.chosen.count(self.queue) < self.start

    def pick(self, runnable: Sequence[str]) -> str:
        """Any other queue first, once the queue is held."""
        held = self.chosen.count(self.queue) >= self.start
        others = [q for q in runnable if q != self.queue]
        choice = others[0] if held and others else runnable[0]
        self.chosen.append(choice)
        return choice


def run(options: GateOptions) -> GateReport:
    """``ORDERS`` orders in all, most of them of the main scenario."""
    scenarios = checks.chosen(options)
    total = QUICK_ORDERS if options.quick else ORDERS
    others = OTHERS * sum(s.name != MAIN for s in scenarios)

    def judge(scenario: Scenario) -> tuple[Verdict, str]:
        orders = max(total - others, OTHERS) if scenario.name == MAIN else OTHERS
        if options.inject:
            orders = 24
        want = reference(scenario)
        for seed in range(options.seed, options.seed + orders):
            out = _run(scenario, options, Picker(seed))
            if _differs(out, want):
                return "mismatch", _explain(scenario, options, seed, out, want)
        return "passed", f"{orders} orders, one output"

    return checks.each("schedules", options, scenarios, judge)


def _run(scenario: Scenario, options: GateOptions, picker: Picker) -> Outcome:
    return run_scenario(scenario, hooks=checks.planted(options), picker=picker)


def _differs(out: Outcome, want: Outcome) -> bool:
    return bool(out.error or out.leaked) or out.digest != want.digest


def _explain(
    scenario: Scenario, options: GateOptions, seed: int, out: Outcome, want: Outcome
) -> str:
    what = out.error or out.leaked or "another output"
    plain = _run(scenario, options, IssueOrder(0))
    if _differs(plain, want):
        return f"seed {seed}: {what}; issue order shows it too, so no order is needed"
    shortest = _shortest(scenario, options, plain, want)
    return f"seed {seed}: {what}; " + (
        f"shortest order: issue order with {shortest[0]} held back from its item {shortest[1]} on"
        if shortest is not None
        else "no single queue held back shows it"
    )


def _shortest(
    scenario: Scenario, options: GateOptions, plain: Outcome, want: Outcome
) -> tuple[str, int] | None:
    """The latest item from which holding one queue back is enough."""
    queues = {e.queue for e in plain.log.entries if e.kind in ("op", "record", "wait")}
    for queue in sorted(queues):
        if not _differs(_run(scenario, options, HoldBack(queue, 0)), want):
            continue
        low, high = 0, sum(e.queue == queue for e in plain.log.entries)
        while high - low > 1:
            middle = (low + high) // 2
            if _differs(_run(scenario, options, HoldBack(queue, middle)), want):
                low = middle
            else:
                high = middle
        return queue, low
    return None
