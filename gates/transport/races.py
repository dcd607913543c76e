"""Gate: every pair of conflicting accesses of every scenario is ordered by a wait, not by luck."""

from __future__ import annotations

from gates.registry import GateOptions
from gates.transport import checks
from gates.transport.harness import IssueOrder
from gates.transport.harness import run as run_scenario
from gates.transport.scenarios import Scenario
from kvbench.device.races import check
from kvbench.records.gate import GateReport, Outcome


def run(options: GateOptions) -> GateReport:
    """Record each scenario in issue order, in which nothing can corrupt, and check its log."""

    def judge(scenario: Scenario) -> tuple[Outcome, str]:
        out = run_scenario(scenario, hooks=checks.planted(options), picker=IssueOrder(0))
        races = check(out.log, limit=1)
        if races:
            more = f" (and {len(races) - 1} more causes)" if len(races) > 1 else ""
            return "mismatch", races[0].describe() + more
        if out.error:
            return "failed", out.error
        return "passed", f"{len(out.log.entries)} entries, every conflict ordered"

    return checks.each("races", options, checks.chosen(options), judge)
