"""Going on with a stored experiment: what must not have changed, and which field did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvbench.environment.comparable import MUST_MATCH_ON_RESUME, differences
from kvbench.errors import UsageError
from kvbench.report.differences import listed
from kvbench.spec import Cell, load_suite
from runner import receipt
from runner.plan import Plan, plain, suite_differences
from runner.state import State
from runner.store import load_environment
from runner.tasks import arms_of


def first_environments(state: State, directory: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """(cell, arm) -> fingerprint at the arm's first run in the journal, its receipt included."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in state.cells.values():
        for run in cell.runs:
            key = (cell.name, run.arm)
            if key not in found and run.failure is None:
                found[key] = load_environment(directory, run.environment)
    return found


def what_changed(
    plan: Plan,
    cells: tuple[Cell, ...],
    state: State,
    directory: Path,
    machine: dict[str, Any],
    suite_ref: str | None,
) -> list[str]:
    """One line per field of suite, environment or arm that differs from what the journal has."""
    found = [f"suite: {name}" for name in _suite_changes(plan, suite_ref)]
    first = next((run for cell in state.cells.values() for run in cell.runs), None)
    if first is not None:
        before = load_environment(directory, first.environment)
        found += [
            f"environment: {name}: {old!r} before, {new!r} now"
            for name, old, new in differences(before, machine, MUST_MATCH_ON_RESUME)
        ]
    for (cell_name, arm_name), stored in first_environments(state, directory).items():
        cell = next(c for c in cells if c.name == cell_name)
        arm = arms_of(cell, plan.links.get(cell_name))[arm_name]
        now = receipt.before_start(arm)
        found += [
            f"arm {arm_name} in {cell_name}: {name}"
            for name in receipt.changed(stored["arm"], {**stored["arm"], **now})
        ]
    return found


def _suite_changes(plan: Plan, suite_ref: str | None) -> list[str]:
    """Compare the plan's source with the suite named now, or else with what it was read from.

    A file that is gone is no reason to refuse: the plan holds all that is needed.
    """
    try:
        suite, _ = load_suite(suite_ref or plan.suite_ref)
    except UsageError:
        if suite_ref is not None:
            raise
        return []
    return suite_differences(plan.source or plan.suite, plain(suite))


def refuse_changes(changes: list[str], directory: Path) -> None:
    """Raise ``UsageError`` that names what changed."""
    if changes:
        raise UsageError(
            f"{directory}: cannot go on, it is not the same experiment: {listed(changes, 4)}; "
            "start a new one, or insist with --resume-anyway"
        )
