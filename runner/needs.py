"""What an experiment will need, said before it starts; what cannot fit is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kvbench.errors import UsageError
from kvbench.report.words import duration, size
from kvbench.spec import Cell, Suite
from runner.rehearsal import Rehearsed
from runner.state import State

BYTES_PER_RUN = 8 << 10
"""A journal line, a side file's share and the reports."""
SPARE_DISK = 16 << 20
SPARE_RAM_MIB = 256


class Needs(NamedTuple):
    """Seconds, MiB and bytes; ``seconds`` and ``ram_mib`` are scaled from the rehearsals."""

    runs: int
    seconds: float
    ram_mib: float
    disk_bytes: int

    def sentence(self) -> str:
        """For the user, before the start."""
        return (
            f"{self.runs} runs, about {duration(self.seconds)}, {size(self.ram_mib * 2**20)} of "
            f"RAM, {size(self.disk_bytes)} of disk"
        )


def count_runs(suite: Suite, cells: Sequence[Cell]) -> int:
    """Timed runs when no look stops early and no block is repeated."""
    return len(cells) * suite.total_blocks * 2 * len(suite.arms)


def count_done(state: State) -> int:
    """Timed runs in complete blocks."""
    return sum(
        2 * len(cell.arms)
        for cell in state.cells.values()
        for block in cell.attempts
        if cell.is_complete(block)
    )


def disk_bytes(suite: Suite, cells: Sequence[Cell]) -> int:
    """What the results directory will hold, generously."""
    return count_runs(suite, cells) * BYTES_PER_RUN + SPARE_DISK


def to_rehearse(cells: Sequence[Cell]) -> list[Cell]:
    """Of each model the cells of least and of greatest extent: others lie between them."""
    chosen: dict[str, Cell] = {}
    for model in dict.fromkeys(cell.model for cell in cells):
        alike = [cell for cell in cells if cell.model == model]
        for cell in (min(alike, key=_extent), max(alike, key=_extent)):
            if _extent(cell) not in {_extent(c) for c in chosen.values() if c.model == model}:
                chosen[cell.name] = cell
    return list(chosen.values())


def estimate(
    suite: Suite, cells: Sequence[Cell], rehearsed: Mapping[str, Rehearsed], gated: set[str]
) -> Needs:
    """Scale the rehearsals: a cell without its own lies between two others by its extent."""
    ends = [(cell, rehearsed[cell.name]) for cell in cells if cell.name in rehearsed]
    seconds = 0.0
    for cell in cells:
        own = rehearsed.get(cell.name)
        one = own.wall_s if own is not None else _between(cell, ends)
        link = cell.link
        if link is not None and link.ratio is not None and own is not None:
            one += own.decode_s * link.ratio  # the ordered path waits for its copies
        gate = 0 if cell.name in gated or suite.gate == "none" else 1 + len(suite.arms)
        seconds += one * (suite.total_blocks * 2 * len(suite.arms) + gate)
    ram = max(r.rss_mib for r in rehearsed.values())
    return Needs(count_runs(suite, cells), seconds, ram, disk_bytes(suite, cells))


def _between(cell: Cell, ends: Sequence[tuple[Cell, Rehearsed]]) -> float:
    """Seconds of a run: its start, and a time for each token, both linear in the extent."""
    alike = [end for end in ends if end[0].model == cell.model] or list(ends)
    low = min(alike, key=lambda end: _extent(end[0]))
    high = max(alike, key=lambda end: _extent(end[0]))
    span = _extent(high[0]) - _extent(low[0])
    share = (_extent(cell) - _extent(low[0])) / span if span else 0.0
    starts, tokens = (
        [found.wall_s - found.decode_s for _, found in (low, high)],
        [found.decode_s / _tokens(end) for end, found in (low, high)],
    )
    start, token = (a + (b - a) * share for a, b in (starts, tokens))
    return start + token * _tokens(cell)


def _tokens(cell: Cell) -> int:
    return (cell.workload.generate + cell.workload.warmup) * cell.workload.sequences


def _extent(cell: Cell) -> int:
    """Tokens that are held at the end of a run: what its time and its memory grow with."""
    return cell.workload.prompt_tokens * cell.workload.sequences + _tokens(cell)


def refuse_before_rehearsal(suite: Suite, cells: Sequence[Cell], directory: Path) -> None:
    """Raise ``UsageError`` for what is known to be impossible before anything has run."""
    needed = disk_bytes(suite, cells)
    parent = _existing(directory)
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise UsageError(
            f"{directory}: the results need {size(needed)} of disk, {size(free)} are free; "
            "choose another place with --out"
        )
    if not os.access(parent, os.W_OK):
        raise UsageError(f"{parent}: results cannot be written here; choose a place with --out")


def refuse(needs: Needs, suite: Suite) -> None:
    """Raise ``UsageError`` if the machine or the suite's own limits cannot hold ``needs``."""
    import psutil

    limit = suite.timeouts.sweep_s
    if needs.seconds > limit:
        raise UsageError(
            f"timeouts.sweep_s: the suite needs about {duration(needs.seconds)}, "
            f"{duration(limit)} are allowed; raise it or make the suite smaller"
        )
    free = psutil.virtual_memory().available / 2**20
    if needs.ram_mib + SPARE_RAM_MIB > free:
        raise UsageError(
            f"one run needs {size(needs.ram_mib * 2**20)} of RAM (and {SPARE_RAM_MIB} MiB to "
            f"spare), {size(free * 2**20)} are free"
        )


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
