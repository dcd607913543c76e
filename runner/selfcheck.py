"""The bench against itself, with real processes on this machine: ``kvbench selfcheck``.

The arms are the ``synthetic`` engine, so that what is true is known.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvbench.analysis.decide import blocks_to_find
from kvbench.analysis.estimate import Floor
from kvbench.errors import UsageError
from kvbench.records import Summary, Verdict, read_journal
from kvbench.records.lines import RunLine
from kvbench.spec import suite_from_builtins
from runner import ab
from runner.plan import new_plan

TOKEN_S = 0.002
GENERATE = 40
ANY_LOAD = 1e6
"""Cores of other load that are allowed here: what a loaded machine does is what is asked."""
CALIBRATION_BLOCKS = 24
MAX_BLOCKS = 24
EFFECTS = (0.015, 0.02, 0.03, 0.05, 0.10, 0.20)

_LOAD = """
import time
while True:
    end = time.process_time() + {busy}
    while time.process_time() < end:
        pass
    time.sleep({idle})
"""


class Outcome(NamedTuple):
    """Verdicts of many experiments of one kind."""

    what: str
    verdicts: dict[str, int]
    detail: str

    @property
    def total(self) -> int:
        """Experiments made."""
        return sum(self.verdicts.values())


@contextmanager
def competing_load(duty: float) -> Iterator[None]:
    """One process that computes for ``duty`` of the time, in pieces of 10 ms; 0: none."""
    if duty <= 0:
        yield
        return
    code = _LOAD.format(busy=0.01 * duty, idle=0.01 * (1 - duty))
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", code])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def experiment(effect: float, blocks: int, floors: dict[str, Floor], keep: Path) -> Summary:
    """Two synthetic arms, the second faster by ``effect``; judged like any other."""
    arms = [
        {"name": "a", "engine": "synthetic", "settings": {"token_s": TOKEN_S}},
        {"name": "b", "engine": "synthetic", "settings": {"token_s": TOKEN_S / (1 + effect)}},
    ]
    raw: dict[str, Any] = {
        "schema": 1,
        "name": "selfcheck",
        "baseline": "a",
        "model": "none",
        "gate": "none",
        "blocks": blocks,
        "workload": {"history": "seeded", "generate": GENERATE, "warmup": 2},
        "environment": {"other_cores": ANY_LOAD, "steal": 1.0},
        "arms": arms,
    }
    suite, _ = suite_from_builtins(raw, "selfcheck")
    plan = new_plan(suite, "selfcheck", ["kvbench", "selfcheck"])
    plan = msgspec.structs.replace(plan, floors=floors)
    return ab.start_plan(plan, lambda *_: ab.silent(), root=keep).summary


def check_aa(experiments: int, blocks: int, duty: float, tell: Callable[[str], None]) -> Outcome:
    """Equal arms under a stated competing load: FASTER and SLOWER should be rare."""
    verdicts: Counter[str] = Counter()
    with competing_load(duty):
        for number in range(experiments):
            with tempfile.TemporaryDirectory() as scratch:
                verdicts[_verdict(experiment(0.0, blocks, {}, Path(scratch)))] += 1
            tell(f"A/A {number + 1}/{experiments}: {_counted(verdicts)}")
    detail = f"{blocks} blocks each, one competing process at {duty:.0%} of a core"
    return Outcome("A/A", dict(verdicts), detail)


def check_effect(experiments: int, tell: Callable[[str], None]) -> Outcome:
    """Calibrate, take the smallest effect within reach, plant it, and count how often it is found.

    Raises ``UsageError`` if no effect is within reach of ``MAX_BLOCKS`` blocks.
    """
    with tempfile.TemporaryDirectory() as scratch:
        aa = experiment(0.0, CALIBRATION_BLOCKS, {}, Path(scratch))
    d = aa.cells[0].comparisons[0].d
    mean = sum(d) / len(d)
    floor = Floor(sum((x - mean) ** 2 for x in d) / (len(d) - 1), len(d) - 1)
    effect, blocks = _within_reach(floor)
    tell(f"calibrated: d_k scatters by {floor.variance**0.5:.3%}; {effect:.1%} needs {blocks}")
    verdicts: Counter[str] = Counter()
    for number in range(experiments):
        with tempfile.TemporaryDirectory() as scratch:
            verdicts[_verdict(experiment(effect, blocks, {"main": floor}, Path(scratch)))] += 1
        tell(f"+{effect:.1%} {number + 1}/{experiments}: {_counted(verdicts)}")
    detail = f"+{effect:.1%} planted, {blocks} blocks as the calibration says"
    return Outcome("planted effect", dict(verdicts), detail)


def _within_reach(floor: Floor) -> tuple[float, int]:
    for effect in EFFECTS:
        blocks = blocks_to_find(effect, floor, 0.01)
        if blocks is not None and blocks <= MAX_BLOCKS:
            return effect, blocks
    raise UsageError(
        f"this machine scatters by {floor.variance**0.5:.1%} between blocks: not even "
        f"{EFFECTS[-1]:.0%} is found with {MAX_BLOCKS} blocks; see kvbench doctor"
    )


def check_repeat(times: int, effect: float, tell: Callable[[str], None]) -> Outcome:
    """The same A/B again and again: one verdict."""
    verdicts: Counter[str] = Counter()
    for number in range(times):
        with tempfile.TemporaryDirectory() as scratch:
            verdicts[_verdict(experiment(effect, 6, {}, Path(scratch)))] += 1
        tell(f"repeated {number + 1}/{times}: {_counted(verdicts)}")
    return Outcome("repeated A/B", dict(verdicts), f"+{effect:.0%} planted, 6 blocks")


def check_overhead(runs: int) -> Outcome:
    """The harness's own time per run: between runs, and around the arm's own phases."""
    blocks = max(2, runs // 4 // 2 * 2)
    with tempfile.TemporaryDirectory() as scratch:
        experiment(0.0, blocks, {}, Path(scratch))
        (directory,) = Path(scratch).iterdir()
        lines = [x for x in read_journal(directory).lines if isinstance(x, RunLine)]
    phases = ("hello_s", "prepare_s", "run_s", "bye_s")
    spent = []
    for line, following in itertools.pairwise(lines):
        arm = sum(line.telemetry[phase] for phase in phases)
        spent.append(following.started - line.started - arm)
    spent.sort()
    middle, worst = spent[len(spent) // 2], spent[-1]
    detail = f"median {1e3 * middle:.0f} ms, worst {1e3 * worst:.0f} ms over {len(spent)} runs"
    return Outcome("harness overhead per run", {"runs": len(spent)}, detail)


def _verdict(summary: Summary) -> str:
    return summary.cells[0].comparisons[0].verdict


def _counted(verdicts: Counter[str]) -> str:
    return ", ".join(f"{verdicts[v]} {v}" for v in Verdict if verdicts[v])


def markdown(outcomes: list[Outcome], doctor: list[str]) -> str:
    """The record: what was done, what came out, and how noisy the machine was."""
    lines = ["# The bench against itself, on a real machine", ""]
    lines += [
        "Printed by `kvbench selfcheck`; the arms are processes that sleep a stated time.",
        "",
    ]
    lines += ["| what | how | experiments | verdicts |", "|---|---|--:|---|"]
    for outcome in outcomes:
        counted = ", ".join(f"{n} {verdict}" for verdict, n in sorted(outcome.verdicts.items()))
        lines.append(f"| {outcome.what} | {outcome.detail} | {outcome.total} | {counted} |")
    lines += ["", "The machine at that time (`kvbench doctor`):", ""]
    lines += [f"- {line}" for line in doctor]
    return "\n".join(lines) + "\n"
