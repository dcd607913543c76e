"""``kvbench ab``: a new experiment or a resumed one, without the command line around it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvbench.environment import fingerprint
from kvbench.environment.fingerprint import CHECKOUT
from kvbench.environment.privacy import scrub
from kvbench.errors import KvbenchError
from kvbench.records import Journal, NoteLine, Summary, read_journal
from kvbench.records.lines import SCHEMA_VERSION
from kvbench.spec import Cell, Suite, load_suite, suite_from_builtins
from runner import needs, resume
from runner.calibration import floors_for
from runner.experiment import Experiment, Watcher
from runner.local import Executor, LocalExecutor
from runner.plan import Plan, load_plan, new_plan, plain, store_plan
from runner.refusals import refuse_unusable
from runner.store import DEFAULT_ROOT, find_run, state_of

MakeWatcher = Callable[[str, int], AbstractContextManager[Watcher]]
"""From a title and a number of runs to something that shows them."""


class Overrides(NamedTuple):
    """What the command line changes in a suite; the plan stores the result."""

    model: str | None = None
    blocks: int | None = None
    delta: float | None = None
    other_cores: float | None = None

    def apply(self, suite: Suite) -> tuple[Suite, tuple[Cell, ...]]:
        """The changed suite, checked again as if it had been written so."""
        raw = msgspec.to_builtins(suite)
        if self.model is not None:
            raw["model"] = self.model
        if self.blocks is not None:
            raw.pop("looks", None)
            raw["blocks"] = self.blocks
        if self.delta is not None:
            raw["delta"] = self.delta
        if self.other_cores is not None:
            raw.setdefault("environment", {})["other_cores"] = self.other_cores
        return suite_from_builtins(raw, "command line")


class Finished(NamedTuple):
    """Where an experiment lies and what came out."""

    directory: Path
    summary: Summary


def start(
    suite_ref: str,
    watch: MakeWatcher,
    *,
    root: Path = DEFAULT_ROOT,
    command: Sequence[str] = (),
    require: str | None = None,
    overrides: Overrides | None = None,
    executor: Executor | None = None,
    begun: Callable[[Path], None] = lambda _: None,
) -> Finished:
    """Plan and run a new experiment. ``begun`` is told its directory before anything runs."""
    suite, cells = load_suite(suite_ref)
    source = plain(suite)
    if overrides is not None:
        suite, cells = overrides.apply(suite)
    machine = fingerprint()
    plan = new_plan(suite, suite_ref, scrub(list(command), CHECKOUT), require)
    plan = msgspec.structs.replace(
        plan,
        floors=floors_for(cells, suite, machine),
        source={} if source == plan.suite else source,
    )
    return start_plan(plan, watch, root=root, executor=executor, begun=begun, machine=machine)


def start_plan(
    plan: Plan,
    watch: MakeWatcher,
    *,
    root: Path = DEFAULT_ROOT,
    executor: Executor | None = None,
    begun: Callable[[Path], None] = lambda _: None,
    machine: dict[str, Any] | None = None,
) -> Finished:
    """Run a plan that nothing has been measured for yet."""
    suite, cells = plan.resolve()
    refuse_unusable(cells, plan.suite_ref, here=executor is None)
    machine = fingerprint() if machine is None else machine
    directory = root / plan.run
    needs.refuse_before_rehearsal(suite, cells, directory)
    store_plan(plan, directory)
    begun(directory)
    try:
        with Journal(directory) as journal:
            runs = needs.count_runs(suite, cells)
            return _run(plan, directory, journal, executor or LocalExecutor(machine), watch, runs)
    except KvbenchError:
        if not read_journal(directory).lines:  # nothing began: nothing to resume or to show
            shutil.rmtree(directory, ignore_errors=True)
        raise


def go_on(
    ref: str,
    watch: MakeWatcher,
    *,
    root: Path = DEFAULT_ROOT,
    suite_ref: str | None = None,
    anyway: bool = False,
    executor: Executor | None = None,
    begun: Callable[[Path], None] = lambda _: None,
) -> Finished:
    """Resume a stored experiment at the block boundary.

    Raises ``UsageError`` naming the field if suite, environment or an arm's program changed,
    unless ``anyway``; the change is then a note in the journal.
    """
    directory = find_run(ref, root)
    plan = load_plan(directory)
    suite, cells = plan.resolve()
    machine = fingerprint()
    begun(directory)
    with Journal(directory) as journal:
        state = state_of(directory, plan, cells)
        changes = resume.what_changed(plan, cells, state, directory, machine, suite_ref)
        if not anyway:
            resume.refuse_changes(changes, directory)
        _note_resume(journal, plan, changes)
        left = needs.count_runs(suite, cells) - needs.count_done(state)
        return _run(plan, directory, journal, executor or LocalExecutor(machine), watch, left)


def _note_resume(journal: Journal, plan: Plan, changes: list[str]) -> None:
    message = "went on"
    if journal.torn is not None:
        message += f"; {journal.torn}"
    if changes:
        message += f"; the user insisted although this changed: {'; '.join(changes[:5])}"
    journal.append(
        NoteLine(
            v=SCHEMA_VERSION,
            run=plan.run,
            what="resumed",
            message=message[:1000],
            at=time.time(),
        )
    )


def _run(
    plan: Plan,
    directory: Path,
    journal: Journal,
    executor: Executor,
    watch: MakeWatcher,
    runs: int,
) -> Finished:
    with watch(plan.resolve()[0].name, runs) as watcher:
        experiment = Experiment(plan, directory, journal, executor, watcher)
        return Finished(directory, experiment.run())


class _Silence:
    """A watcher that shows nothing."""

    def doing(self, text: str) -> None:
        """Nothing."""

    def more(self, steps: int) -> None:
        """Nothing."""

    def step(self, text: str, left_s: float | None = None) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


def silent() -> AbstractContextManager[Watcher]:
    """For experiments within something that reports by itself."""
    return nullcontext(_Silence())
