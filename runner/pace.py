"""How long runs take, what that leaves to do, and one line for a finished run."""

from __future__ import annotations

from kvbench.records import RunLine
from kvbench.report.words import number
from runner.state import CellState, State


class Pace:
    """Wall time of each arm's runs in each cell, as measured in this session."""

    def __init__(self) -> None:
        self._walls: dict[tuple[str, str], list[float]] = {}

    def add(self, line: RunLine) -> None:
        """Take in a finished run."""
        self._walls.setdefault((line.cell, line.arm), []).append(line.wall_s)

    def left(self, state: State, blocks: int) -> float:
        """Seconds that the runs still to come will take; an arm not seen yet counts as average."""
        every = [wall for walls in self._walls.values() for wall in walls]
        overall = sum(every) / len(every)
        left = 0.0
        for cell in state.cells.values():
            if cell.failure is not None or cell.changed is not None:
                continue
            for arm in cell.arms:
                own = self._walls.get((cell.name, arm))
                mean = sum(own) / len(own) if own else overall
                left += mean * (blocks * 2 - _done(cell, arm))
        return max(0.0, left)


def _done(cell: CellState, arm: str) -> int:
    return sum(1 for run in cell.counted if run.arm == arm)


def words(line: RunLine) -> str:
    """Where the run stands and what it gave."""
    where = f"{line.cell} block {line.block + 1} run {line.position + 1} {line.arm}"
    if line.failure is not None:
        return f"{where}: {line.failure.kind}: {line.failure.message}"
    assert line.result is not None
    speed = number(line.result.tokens / line.result.decode_s)
    doubt = f" ({line.violations[0]})" if line.violations else ""
    return f"{where}: {speed} tok/s{doubt}"
