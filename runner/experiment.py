"""One experiment from plan to summary: rehearse, gate, run the blocks, judge."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kvbench.analysis.order import block_order
from kvbench.environment.comparable import MUST_MATCH_WITHIN_A_CELL, differences
from kvbench.errors import ArmFailure, KvbenchError
from kvbench.records import Journal, NoteLine, RunLine, Summary, VoidLine
from kvbench.records.lines import SCHEMA_VERSION
from kvbench.spec import Cell
from runner import needs, receipt
from runner.block import BlockJob
from runner.gating import gate_line, gate_report
from runner.local import Executor
from runner.pace import Pace, words
from runner.plan import Plan, rounds, store_plan
from runner.rehearsal import Rehearsed, rehearse, resolve_link, unthrottled
from runner.resume import first_environments
from runner.state import fold
from runner.store import sources_of, store_environment, store_summary
from runner.tasks import LINK_SETTING, arms_of, task_of
from runner.verdict import decided_at_look, summarise


class Watcher(Protocol):
    """Is told what happens (``kvbench.report.progress.Progress`` is one)."""

    def doing(self, text: str) -> None:
        """What runs now."""

    def more(self, steps: int) -> None:
        """That many finished runs do not count and are run again."""

    def step(self, text: str, left_s: float | None = None) -> None:
        """One run is over; about ``left_s`` seconds are left."""

    def note(self, text: str) -> None:
        """Something to keep on the screen."""


class Experiment:
    """Drives one plan in one directory. ``run`` may be interrupted at any moment and resumed."""

    def __init__(
        self, plan: Plan, directory: Path, journal: Journal, executor: Executor, watcher: Watcher
    ) -> None:
        self.plan, self.directory, self.journal = plan, directory, journal
        self.executor, self.watcher = executor, watcher
        self.suite, self.cells = plan.resolve()
        self.state = fold(journal.lines, [(c.name, [a.name for a in c.arms]) for c in self.cells])
        self.deadline = time.monotonic() + self.suite.timeouts.sweep_s
        self._receipts = first_environments(self.state, directory)
        self._pace = Pace()

    def run(self) -> Summary:
        """Everything that is not in the journal yet; then judge and write the reports.

        Raises ``ArmFailure`` if the rehearsal fails or the sweep's time is over, ``UsageError``
        for what cannot fit; what was measured stays in the journal.
        """
        try:
            self._void_unfinished()
            self._rehearse()
            self._gate()
            self._blocks()
            self._note("finished", "all blocks are done")
        except BaseException:
            # Show what there is, also after an interrupt; a full disk must not hide the reason.
            with contextlib.suppress(KvbenchError):
                store_summary(self.directory, self.summary())
            raise
        summary = self.summary()
        store_summary(self.directory, summary)
        return summary

    def summary(self) -> Summary:
        """Judge what the journal holds now."""
        return summarise(self.plan, self.state, sources_of(self.directory))

    # ---- before the first block ----------------------------------------------------------------

    def _void_unfinished(self) -> None:
        """Resuming: a block that was cut short is started again (M3)."""
        for cell in self.state.cells.values():
            for block in list(cell.attempts):
                latest = cell.attempt(block)
                assert latest is not None
                if latest.void is None and latest.failure is None and not cell.is_complete(block):
                    self._void(cell.name, block, latest.number, "interrupted")

    def _rehearse(self) -> None:
        wanted = [c for c in self.cells if self._needs_rehearsal(c)]
        if not wanted and not any(cell.runs for cell in self.state.cells.values()):
            wanted = needs.to_rehearse(self.cells)
        rehearsed: dict[str, Rehearsed] = {}
        links = dict(self.plan.links)
        for cell in wanted:
            self.watcher.doing(f"{cell.name}: rehearsal, one run of {self.suite.baseline}")
            found = self._rehearse_cell(cell)
            rehearsed[cell.name] = found
        for cell in self.cells:
            if cell.name not in links:
                link = resolve_link(cell.link, rehearsed.get(cell.name), cell.name)
                if link is not None:
                    links[cell.name] = link
        if links != self.plan.links:
            self.plan = msgspec.structs.replace(self.plan, links=links)
            store_plan(self.plan, self.directory)
        if rehearsed:
            gated = {name for name, cell in self.state.cells.items() if cell.gate is not None}
            need = needs.estimate(self.suite, self.cells, rehearsed, gated)
            self.watcher.note(f"needs {need.sentence()}")
            needs.refuse(need, self.suite)

    def _needs_rehearsal(self, cell: Cell) -> bool:
        calibrated = cell.link is not None and cell.link.ratio is not None
        return calibrated and cell.name not in self.plan.links

    def _rehearse_cell(self, cell: Cell) -> Rehearsed:
        arm = arms_of(cell, None)[self.suite.baseline]
        cpus = self._affinity(cell).get(arm.name)
        arm = unthrottled(arm, LINK_SETTING)
        run_s = self.suite.timeouts.run_s
        return self.executor.call(cell.name, rehearse, arm, task_of(cell), run_s, cpus)

    def _gate(self) -> None:
        if self.suite.gate == "none":
            return
        for cell in self.cells:
            state = self.state.cells[cell.name]
            if state.gate is not None and state.gate.outcome == "passed":
                continue
            self._within_time()
            self.watcher.doing(f"{cell.name}: gate")
            arms = arms_of(cell, self.plan.links.get(cell.name))
            report = self.executor.call(cell.name, gate_report, self.suite, arms, task_of(cell))
            line = gate_line(self.plan.run, cell.name, arms, report, self.journal)
            self.state.add(line)
            self.watcher.note(f"{cell.name}: gate {line.outcome}: {line.message}")

    # ---- the blocks ----------------------------------------------------------------------------

    def _blocks(self) -> None:
        decided: set[str] = set()
        for block, indices in rounds(len(self.cells), self.suite.total_blocks):
            decided |= decided_at_look(self.plan, self.state, block)
            jobs = [
                self._job(self.cells[index], block, self._next_attempt(index, block))
                for index in indices
                if self._is_open(self.cells[index], block, decided)
            ]
            while jobs:
                jobs = self._round(jobs)

    def _is_open(self, cell: Cell, block: int, decided: set[str]) -> bool:
        state = self.state.cells[cell.name]
        gated = self.suite.gate == "none" or (
            state.gate is not None and state.gate.outcome == "passed"
        )
        stopped = cell.name in decided or state.failure is not None or state.changed is not None
        return gated and not stopped and not state.is_complete(block)

    def _next_attempt(self, index: int, block: int) -> int:
        latest = self.state.cells[self.cells[index].name].attempt(block)
        return 0 if latest is None else latest.number + 1

    def _round(self, jobs: Sequence[BlockJob]) -> list[BlockJob]:
        """Run one block of each job; the blocks that have to be repeated."""
        self._within_time()
        lost = self.executor.run(iter(jobs), self._emit, self.watcher.doing)
        again = []
        for job, reason in lost:
            if self.state.cells[job.cell].attempt(job.block) is not None:
                self._repeat(job, reason)
            again.append(msgspec.structs.replace(job, attempt=job.attempt + 1))
        finished = {(job.cell, job.block) for job in jobs} - {(j.cell, j.block) for j, _ in lost}
        again += [
            msgspec.structs.replace(job, attempt=job.attempt + 1)
            for job in jobs
            if (job.cell, job.block) in finished and self._must_repeat(job)
        ]
        return again

    def _must_repeat(self, job: BlockJob) -> bool:
        """M5: a block is repeated only for what the machine did, and the journal says so."""
        latest = self.state.cells[job.cell].attempt(job.block)
        if latest is None or latest.failure is not None or not latest.violations:
            return False
        repeats = sum(
            1
            for attempt in self.state.cells[job.cell].attempts[job.block]
            if attempt.void is not None and attempt.void.startswith("telemetry")
        )
        if repeats >= self.suite.environment.repeats:
            return False
        self._repeat(job, f"telemetry: {latest.violations[0]}")
        return True

    def _repeat(self, job: BlockJob, reason: str) -> None:
        """What the block's latest attempt has measured does not count; it is to come again."""
        latest = self.state.cells[job.cell].attempt(job.block)
        assert latest is not None
        self._void(job.cell, job.block, job.attempt, reason)
        self.watcher.more(len(latest.runs))

    def _job(self, cell: Cell, block: int, attempt: int) -> BlockJob:
        names = [arm.name for arm in cell.arms]
        return BlockJob(
            run=self.plan.run,
            cell=cell.name,
            block=block,
            attempt=attempt,
            order=block_order(names, block),
            arms=arms_of(cell, self.plan.links.get(cell.name)),
            task=task_of(cell),
            run_s=self.suite.timeouts.run_s,
            limits=self.suite.environment,
            affinity=self._affinity(cell),
        )

    def _affinity(self, cell: Cell) -> dict[str, tuple[int, ...]]:
        chosen = {arm.name: arm.affinity or self.suite.affinity for arm in cell.arms}
        return {name: cpus for name, cpus in chosen.items() if cpus is not None}

    def _emit(self, line: RunLine, environment: dict[str, Any]) -> None:
        """One finished run: its fingerprint and its line are on disk when this returns."""
        store_environment(self.directory, environment, line.environment)
        self.journal.append(line)
        self.state.add(line)
        self._check_environment(line, environment)
        self._pace.add(line)
        left = self._pace.left(self.state, self.suite.total_blocks)
        self.watcher.step(words(line), left)
        if left:
            self._within_time()

    def _check_environment(self, line: RunLine, environment: dict[str, Any]) -> None:
        """An arm's program, or a machine, that changed between two runs voids the cell."""
        if line.failure is not None:
            return
        before = self._receipts.setdefault((line.cell, line.arm), environment)
        differs = receipt.changed(before["arm"], environment["arm"])
        where = f"arm {line.arm}"
        if not differs:
            found = differences(before, environment, MUST_MATCH_WITHIN_A_CELL)
            differs, where = [name for name, _, _ in found], "the environment"
        if differs and self.state.cells[line.cell].changed is None:
            self._note(
                "environment-changed",
                f"{where} changed between runs of {line.cell}: {', '.join(differs)}",
                {"cell": line.cell},
            )

    # ---- the journal ---------------------------------------------------------------------------

    def _void(self, cell: str, block: int, attempt: int, reason: str) -> None:
        line = VoidLine(
            v=SCHEMA_VERSION,
            run=self.plan.run,
            cell=cell,
            block=block,
            attempt=attempt,
            reason=reason,
            at=time.time(),
        )
        self.journal.append(line)
        self.state.add(line)

    def _note(self, what: str, message: str, data: dict[str, Any] | None = None) -> None:
        line = NoteLine(
            v=SCHEMA_VERSION,
            run=self.plan.run,
            what=what,
            message=message,
            at=time.time(),
            data=data or {},
        )
        self.journal.append(line)
        self.state.add(line)

    def _within_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise ArmFailure(
                f"timeouts.sweep_s: {self.suite.timeouts.sweep_s:g} s are over; "
                f"go on with: kvbench ab --resume {self.directory}"
            )
