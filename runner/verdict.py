"""From plan and journal to the summary: the same for a live run, a stored one and a bundle."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

import kvbench
from gates.exact.tolerance import label as tolerance_label
from kvbench.analysis import decide, diagnose
from kvbench.analysis.judge import Adjust, Measured, Rules, compare, measure
from kvbench.analysis.order import positions_are_balanced
from kvbench.records import (
    CellSummary,
    Comparison,
    GateOutcome,
    Result,
    RunLine,
    RunValue,
    Summary,
    Verdict,
    Warn,
)
from kvbench.records.summary import SUMMARY_VERSION
from kvbench.spec import Cell, Suite
from runner.arms_summary import summarise_arm
from runner.plan import Plan
from runner.state import CellState, State
from runner.validity import Invalid, why_invalid

INCONCLUSIVE_EXIT = 3


class Sources(msgspec.Struct, frozen=True):
    """Where the summary looks up what the journal only refers to."""

    full: Callable[[RunLine], Result | None]
    environment: Callable[[str], dict[str, Any]]
    details: Callable[[str], dict[str, Any]]


def summarise(plan: Plan, state: State, sources: Sources) -> Summary:
    """Judge everything that the journal holds."""
    suite, cells = plan.resolve()
    invalid = {cell.name: why_invalid(suite, cell, state.cells[cell.name]) for cell in cells}
    comparisons = _comparisons(plan, suite, cells, state, invalid)
    orders = _run_orders(state)
    summaries = tuple(
        _cell(suite, cell, plan, state.cells[cell.name], comparisons[cell.name], orders, sources)
        for cell in cells
    )
    environment_hash = next((r.environment for c in state.cells.values() for r in c.runs), "")
    environment = sources.environment(environment_hash) if environment_hash else {}
    judged = [c for summary in summaries for c in summary.comparisons]
    exit_code = _exit_code(plan, suite, list(invalid.values()), judged)
    return Summary(
        v=SUMMARY_VERSION,
        run=plan.run,
        suite=suite.name,
        description=suite.description,
        started=plan.created,
        finished=state.finished,
        kvbench=kvbench.__version__,
        baseline=suite.baseline,
        delta=suite.delta,
        blocks=suite.total_blocks,
        looks=suite.looks,
        labels=_labels(plan, suite),
        command=plan.command,
        environment={part: value for part, value in environment.items() if part != "arm"},
        environment_hash=environment_hash,
        cells=summaries,
        exit_code=exit_code,
        requirement=plan.require,
        requirement_met=None if plan.require is None else exit_code == 0,
        warnings=_suite_warnings(suite),
        notes=tuple(f"{n.what}: {n.message}" for n in state.notes if n.what != "finished"),
    )


def decided_at_look(plan: Plan, state: State, block_count: int) -> set[str]:
    """Cells that a declared look after ``block_count`` blocks has decided; they stop there.

    Bonferroni instead of Holm: whatever the other cells still do, the last word agrees.
    """
    suite, cells = plan.resolve()
    if block_count not in suite.looks:
        return set()
    invalid = {cell.name: why_invalid(suite, cell, state.cells[cell.name]) for cell in cells}
    found = _comparisons(plan, suite, cells, state, invalid, decide.bonferroni)
    return {
        name
        for name, each in found.items()
        if all(c.verdict is not Verdict.INCONCLUSIVE and len(c.blocks) >= block_count for c in each)
    }


def _comparisons(
    plan: Plan,
    suite: Suite,
    cells: Sequence[Cell],
    state: State,
    invalid: Mapping[str, Invalid | None],
    adjust: Adjust = decide.holm,
) -> dict[str, tuple[Comparison, ...]]:
    looks = max(1, len(suite.looks))
    rules = Rules(suite.delta, looks)
    measured: list[tuple[str, Measured]] = []
    for cell in cells:
        own = Rules(suite.delta, looks, plan.floors.get(cell.name))
        blocks = state.cells[cell.name].blocks()
        measured += [
            (cell.name, measure(blocks, arm.name, suite.baseline, own))
            for arm in cell.arms
            if arm.name != suite.baseline
        ]
    valid = [(name, m) for name, m in measured if invalid[name] is None]
    judged = iter(compare([m for _, m in valid], rules, adjust))
    found: dict[str, tuple[Comparison, ...]] = {cell.name: () for cell in cells}
    for name, m in measured:
        why = invalid[name]
        comparison = next(judged) if why is None else _invalid(m, why)
        found[name] = (*found[name], comparison)
    return found


def _invalid(m: Measured, why: Invalid) -> Comparison:
    """An INVALID comparison shows its block differences, and no ratio that could be quoted."""
    return Comparison(
        arm=m.arm,
        baseline=m.baseline,
        verdict=Verdict.INVALID,
        reason=why.reason,
        blocks=m.blocks,
        d=tuple(map(float, m.d)),
        diagnostics=m.diagnostics,
        warnings=m.warnings,
    )


def _cell(
    suite: Suite,
    cell: Cell,
    plan: Plan,
    state: CellState,
    comparisons: tuple[Comparison, ...],
    orders: Mapping[int, int],
    sources: Sources,
) -> CellSummary:
    link = plan.links.get(cell.name)
    counted = state.counted
    return CellSummary(
        name=cell.name,
        axes=cell.axes,
        workload={**msgspec.to_builtins(cell.workload), "model": cell.model},
        gate=_gate(suite, state, sources),
        arms=tuple(
            summarise_arm(spec, counted, sources.full, sources.environment) for spec in cell.arms
        ),
        comparisons=comparisons,
        runs=_values(state, counted, orders),
        link={} if link is None else msgspec.to_builtins(link),
        warnings=_cell_warnings(state),
    )


def _gate(suite: Suite, state: CellState, sources: Sources) -> GateOutcome:
    line = state.gate
    if line is None:
        why = 'gate = "none"' if suite.gate == "none" else "the gate was not run yet"
        return GateOutcome("not checked", why)
    report = {} if line.report is None else sources.details(line.report)
    return GateOutcome(line.outcome, line.message, line.seconds, report)


def _run_orders(state: State) -> dict[int, int]:
    """id(run) -> place in the whole experiment."""
    everything = [run for cell in state.cells.values() for run in cell.runs]
    everything.sort(key=lambda run: run.started)
    return {id(run): place for place, run in enumerate(everything)}


def _values(
    state: CellState, counted: Sequence[RunLine], orders: Mapping[int, int]
) -> tuple[RunValue, ...]:
    flagged: set[int] = set()
    for arm in state.arms:
        own = [run for run in counted if run.arm == arm and run.result is not None]
        logs = [math.log(run.result.tokens / run.result.decode_s) for run in own if run.result]
        flags = diagnose.outliers(logs)
        flagged |= {id(run) for run, flag in zip(own, flags, strict=True) if flag}
    counts = {id(run) for run in counted}
    return tuple(
        RunValue(
            order=orders[id(run)],
            block=run.block,
            attempt=run.attempt,
            position=run.position,
            pass_=run.pass_,
            arm=run.arm,
            started=run.started,
            tok_s=None if run.result is None else run.result.tokens / run.result.decode_s,
            failure=None if run.failure is None else f"{run.failure.kind}: {run.failure.message}",
            counted=id(run) in counts,
            outlier=id(run) in flagged,
            violations=run.violations,
            telemetry=run.telemetry,
        )
        for run in state.runs
    )


def _cell_warnings(state: CellState) -> tuple[Warn, ...]:
    found = []
    for number, tries in sorted(state.attempts.items()):
        found += [
            Warn("repeated-block", f"block {number + 1}, attempt {a.number + 1}: {a.void}")
            for a in tries
            if a.void is not None
        ]
    return tuple(found)


def _suite_warnings(suite: Suite) -> tuple[Warn, ...]:
    arms = len(suite.arms)
    counts = suite.looks or (suite.total_blocks,)
    if all(positions_are_balanced(arms, count) for count in counts):
        return ()
    return (
        Warn(
            "unbalanced-positions",
            f"{suite.total_blocks} blocks of {arms} arms: not every arm meets every position "
            f"equally often; a multiple of {arms} would cancel quadratic drift too",
        ),
    )


def _charged(suite: Suite) -> list[str]:
    """Says which arms carry a modelled cost of waiting; grid axes included."""
    name = "wait_cost_us"
    stated = {arm.name: [arm.settings[name]] for arm in suite.arms if name in arm.settings}
    for axis, values in suite.grid.items():
        if axis == f"settings.{name}":
            stated |= {arm.name: values for arm in suite.arms}
        elif axis.endswith(f".{name}"):
            stated[axis.split(".")[1]] = values
    costs = {arm: "/".join(f"{v:g}" for v in values if v) for arm, values in stated.items()}
    costs = {arm: cost for arm, cost in costs.items() if cost}
    shown = ", ".join(f"{arm} {cost} us" for arm, cost in costs.items())
    return [f"MODEL: a stated cost is charged for each wait of the host: {shown}"] if costs else []


def _labels(plan: Plan, suite: Suite) -> tuple[str, ...]:
    labels = []
    if suite.gate == "none":
        labels.append("NOT CHECKED: the suite asks for no exactness gate")
    if suite.gate == "tolerance":
        assert suite.tolerance is not None
        labels.append(tolerance_label(suite.tolerance))
    if suite.process == "attached":
        labels.append("ATTACHED: servers that were already running, not fresh processes")
    labels += dict.fromkeys(link.label for link in plan.links.values())
    labels += _charged(suite)
    if "seeded" in (suite.workload.history, *suite.grid.get("workload.history", ())):
        labels.append("SEEDED HISTORY: contexts are seeded rows, not a prompt's prefill")
    return tuple(labels)


def _exit_code(
    plan: Plan, suite: Suite, invalid: Sequence[Invalid | None], judged: Sequence[Comparison]
) -> int:
    """4 before 6 before 5; then what ``--require`` asks for."""
    codes = {why.exit_code for why in invalid if why is not None}
    for code in (4, 6, 5):
        if code in codes:
            return code
    if plan.require is None:
        return 0
    exits = {_required(plan.require, comparison, suite.delta) for comparison in judged}
    return next((code for code in (1, INCONCLUSIVE_EXIT) if code in exits), 0)


def _required(requirement: str, comparison: Comparison, delta: float) -> int:
    if comparison.ci90 is None:
        return INCONCLUSIVE_EXIT
    lower = math.log(comparison.ci90[0])
    return decide.requirement_exit(requirement, comparison.verdict, lower, delta)
