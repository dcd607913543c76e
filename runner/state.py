"""What a journal says so far: a fold over its lines, the same for running, resuming, judging."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvbench.analysis.judge import Block
from kvbench.analysis.order import block_order
from kvbench.records import GateLine, Line, NoteLine, RunLine, VoidLine


@dataclass
class Attempt:
    """One try at a block."""

    number: int
    runs: dict[int, RunLine] = field(default_factory=dict)
    """Position -> run."""
    void: str | None = None
    """Why it does not count."""

    @property
    def failure(self) -> RunLine | None:
        """Its failed run, if it has one."""
        return next((run for run in self.runs.values() if run.failure is not None), None)

    @property
    def violations(self) -> tuple[str, ...]:
        """Every reason for which its runs break the comparison, once each."""
        found = (text for run in self.runs.values() for text in run.violations)
        return tuple(dict.fromkeys(found))


@dataclass
class CellState:
    """All that happened to one cell."""

    name: str
    arms: tuple[str, ...]
    gate: GateLine | None = None
    attempts: dict[int, list[Attempt]] = field(default_factory=dict)
    """Block -> attempts, in order."""
    runs: list[RunLine] = field(default_factory=list)
    """In run order, counted or not."""
    changed: str | None = None
    """Why a changed environment voids the whole cell."""

    def attempt(self, block: int) -> Attempt | None:
        """The block's latest attempt."""
        tries = self.attempts.get(block)
        return tries[-1] if tries else None

    def is_complete(self, block: int) -> bool:
        """Whether the block's latest attempt counts and has all its runs, none of them failed."""
        latest = self.attempt(block)
        return (
            latest is not None
            and latest.void is None
            and latest.failure is None
            and len(latest.runs) == 2 * len(self.arms)
        )

    @property
    def failure(self) -> RunLine | None:
        """The failed run that ended the cell."""
        for block in self.attempts:
            latest = self.attempt(block)
            if latest is not None and latest.void is None and latest.failure is not None:
                return latest.failure
        return None

    @property
    def counted(self) -> list[RunLine]:
        """Runs of each block's latest attempt, where that is not void; in run order."""
        latest = {
            block: tries[-1].number for block, tries in self.attempts.items() if not tries[-1].void
        }
        return [run for run in self.runs if latest.get(run.block) == run.attempt]

    def blocks(self) -> list[Block]:
        """Complete blocks in the form that is judged."""
        found = []
        for number in sorted(self.attempts):
            latest = self.attempt(number)
            if latest is None or not self.is_complete(number):
                continue
            speeds: dict[str, list[float]] = {arm: [] for arm in self.arms}  # pass 0, pass 1
            places: dict[str, list[int]] = {arm: [] for arm in self.arms}
            for position in sorted(latest.runs):
                run = latest.runs[position]
                assert run.result is not None
                speeds[run.arm].append(math.log(run.result.tokens / run.result.decode_s))
                places[run.arm].append(position)
            found.append(
                Block(
                    number,
                    {arm: (v[0], v[1]) for arm, v in speeds.items()},
                    {arm: (p[0], p[1]) for arm, p in places.items()},
                )
            )
        return found


@dataclass
class State:
    """The journal's content by cell."""

    cells: dict[str, CellState]
    notes: list[NoteLine] = field(default_factory=list)
    finished: float | None = None

    def add(self, line: Line) -> None:
        """Take in one more line."""
        if isinstance(line, NoteLine):
            self._note(line)
            return
        cell = self.cells[line.cell]
        if isinstance(line, GateLine):
            cell.gate = line
        elif isinstance(line, VoidLine):
            self._void(cell, line)
        else:
            self._run(cell, line)

    def _note(self, line: NoteLine) -> None:
        self.notes.append(line)
        if line.what == "finished":
            self.finished = line.at
        elif line.what == "resumed":
            self.finished = None
        elif line.what == "environment-changed":
            self.cells[line.data["cell"]].changed = line.message

    def _void(self, cell: CellState, line: VoidLine) -> None:
        for attempt in cell.attempts.get(line.block, []):
            if attempt.number == line.attempt:
                attempt.void = line.reason

    def _run(self, cell: CellState, line: RunLine) -> None:
        tries = cell.attempts.setdefault(line.block, [])
        if not tries or tries[-1].number < line.attempt:
            tries.append(Attempt(line.attempt))
        attempt = tries[-1]
        if attempt.number != line.attempt:
            attempt = next(a for a in tries if a.number == line.attempt)
        if line.position in attempt.runs:
            raise ValueError(
                f"cell {line.cell}, block {line.block}, attempt {line.attempt}: position "
                f"{line.position} appears twice"
            )
        expected = block_order(cell.arms, line.block)
        if line.position >= len(expected) or expected[line.position] != line.arm:
            raise ValueError(
                f"cell {line.cell}, block {line.block}: arm {line.arm!r} at position "
                f"{line.position} is not the plan's order"
            )
        attempt.runs[line.position] = line
        cell.runs.append(line)


def fold(lines: Iterable[Line], cells: Sequence[tuple[str, Sequence[str]]]) -> State:
    """The state after ``lines``; ``cells`` are (name, arms). ``ValueError`` if it cannot be."""
    state = State({name: CellState(name, tuple(arms)) for name, arms in cells})
    for line in lines:
        try:
            state.add(line)
        except KeyError as error:
            raise ValueError(f"the journal names a cell that the plan has not: {error}") from error
    return state
