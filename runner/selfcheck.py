"""The bench against itself, with real processes on this machine: ``kvbench selfcheck``.

The arms are the ``synthetic`` engine as a plain script, so that what is true is known and a run
costs little beside the time that is measured.
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvbench.analysis.decide import CONFIDENCE, blocks_to_find
from kvbench.analysis.estimate import Floor
from kvbench.engines import synthetic
from kvbench.errors import UsageError
from kvbench.records import Summary, Verdict, read_journal
from kvbench.records.journal import write_durably
from kvbench.records.lines import RunLine
from kvbench.spec import suite_from_builtins
from runner import ab
from runner.plan import new_plan

COMMAND = [sys.executable, "-I", "-S", synthetic.__file__]
ANY_LOAD = 1e6
"""Cores of other load that are allowed here: what a loaded machine does is what is asked."""
DELTA = 0.01
CALIBRATION_BLOCKS = 24
EFFECTS = (0.015, 0.02, 0.03, 0.05, 0.075, 0.10, 0.15, 0.20, 0.30, 0.50, 1.0)
MAX_BLOCKS = 8
"""Of a planted effect's experiments: many short ones say more than a few long ones."""
POWER, REPEAT_POWER = 0.9, 0.99
MAX_OVERHEAD_S = 0.3

_LOAD = """
import time
while True:
    end = time.process_time() + {busy}
    while time.process_time() < end:
        pass
    time.sleep({idle})
"""


class Length(NamedTuple):
    """How long one run takes: ``generate`` tokens of ``token_s`` seconds."""

    token_s: float
    generate: int


MEASURED, SHORT = Length(0.002, 40), Length(0.001, 20)


class Outcome(NamedTuple):
    """Verdicts of many experiments of one kind, and whether they are what was aimed at."""

    what: str
    verdicts: dict[str, int]
    detail: str
    aim: str
    met: bool

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


def experiment(
    effect: float,
    blocks: int,
    keep: Path,
    floors: dict[str, Floor] | None = None,
    length: Length = MEASURED,
) -> Summary:
    """Two synthetic arms, the second faster by ``effect``; judged like any other."""
    times = {"a": length.token_s, "b": length.token_s / (1 + effect)}
    raw: dict[str, Any] = {
        "schema": 1,
        "name": "selfcheck",
        "baseline": "a",
        "model": "none",
        "gate": "none",
        "delta": DELTA,
        "blocks": blocks,
        "workload": {"history": "seeded", "generate": length.generate, "warmup": 2},
        "environment": {"other_cores": ANY_LOAD, "steal": 1.0},
        "arms": [
            {"name": name, "engine": "program", "command": COMMAND, "settings": {"token_s": token}}
            for name, token in times.items()
        ],
    }
    suite, _ = suite_from_builtins(raw, "selfcheck")
    plan = new_plan(suite, "selfcheck", ["kvbench", "selfcheck"])
    plan = msgspec.structs.replace(plan, floors=floors or {})
    return ab.start_plan(plan, lambda *_: ab.silent(), root=keep).summary


def check_aa(experiments: int, blocks: int, duty: float, tell: Callable[[str], None]) -> Outcome:
    """Equal arms under a stated competing load: FASTER and SLOWER should be rare."""
    with competing_load(duty):
        verdicts = _repeat(
            experiments, "A/A", tell, lambda keep: experiment(0.0, blocks, keep, length=SHORT)
        )
    wrong = verdicts[Verdict.FASTER] + verdicts[Verdict.SLOWER]
    judged = verdicts.total() - verdicts[Verdict.INVALID]
    detail = f"{blocks} blocks each, one competing process at {duty:.0%} of a core"
    met = judged > 0 and wrong <= 0.05 * judged
    return Outcome("A/A", dict(verdicts), detail, "FASTER or SLOWER in at most 5%", met)


def calibrated(tell: Callable[[str], None]) -> Floor:
    """The spread of d_k between equal arms, here and now."""
    with tempfile.TemporaryDirectory() as scratch:
        aa = experiment(0.0, CALIBRATION_BLOCKS, Path(scratch))
    d = aa.cells[0].comparisons[0].d
    mean = math.fsum(d) / len(d)
    floor = Floor(math.fsum((x - mean) ** 2 for x in d) / (len(d) - 1), len(d) - 1)
    tell(f"calibrated over {len(d)} blocks: {_spread(floor)}")
    return floor


def check_effect(experiments: int, floor: Floor, tell: Callable[[str], None]) -> Outcome:
    """Plant the smallest effect that is within reach here, and count how often it is found."""
    effect, blocks = within_reach(floor, POWER)
    verdicts = _repeat(
        experiments,
        f"+{effect:.1%}",
        tell,
        lambda keep: experiment(effect, blocks, keep, {"main": floor}),
    )
    detail = f"+{effect:.1%} planted, {blocks} blocks as the calibration says; {_spread(floor)}"
    met = verdicts[Verdict.FASTER] >= POWER * experiments
    return Outcome("planted effect", dict(verdicts), detail, "FASTER in at least 90%", met)


def check_repeat(times: int, floor: Floor, tell: Callable[[str], None]) -> Outcome:
    """The same A/B again and again: one verdict. The effect is one that is clear here."""
    effect, blocks = within_reach(floor, REPEAT_POWER)
    verdicts = _repeat(times, "repeated", tell, lambda keep: experiment(effect, blocks, keep))
    detail = f"+{effect:.1%} planted, {blocks} blocks, within reach of {REPEAT_POWER:.0%}"
    return Outcome("repeated A/B", dict(verdicts), detail, "one verdict", len(verdicts) == 1)


def within_reach(floor: Floor, power: float) -> tuple[float, int]:
    """The smallest effect that ``MAX_BLOCKS`` blocks or fewer find with ``power``, and how many.

    Raises ``UsageError`` if there is none.
    """
    for effect in EFFECTS:
        blocks = blocks_to_find(effect, floor, DELTA, power)
        if blocks is not None and blocks <= MAX_BLOCKS:
            return effect, blocks
    raise UsageError(
        f"this machine is too noisy for {MAX_BLOCKS} blocks to find even {EFFECTS[-1]:.0%}: "
        f"{_spread(floor)}; see kvbench doctor"
    )


def check_overhead(runs: int) -> Outcome:
    """The harness's own time per run: between runs, and around the arm's own phases."""
    blocks = max(2, runs // 4 // 2 * 2)
    with tempfile.TemporaryDirectory() as scratch:
        experiment(0.0, blocks, Path(scratch))
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
    aim = f"at most {1e3 * MAX_OVERHEAD_S:.0f} ms"
    met = middle <= MAX_OVERHEAD_S
    return Outcome("harness overhead per run", {"runs": len(spent)}, detail, aim, met)


def _repeat(
    count: int, name: str, tell: Callable[[str], None], make: Callable[[Path], Summary]
) -> Counter[str]:
    """Verdicts of ``count`` experiments, each in a directory of its own that goes with it."""
    verdicts: Counter[str] = Counter()
    for number in range(count):
        with tempfile.TemporaryDirectory() as scratch:
            verdicts[make(Path(scratch)).cells[0].comparisons[0].verdict] += 1
        counted = ", ".join(f"{verdicts[v]} {v}" for v in Verdict if verdicts[v])
        tell(f"{name} {number + 1}/{count}: {counted}")
    return verdicts


def _spread(floor: Floor) -> str:
    most = floor.upper_spread(CONFIDENCE)
    return f"d_k scatters by {math.sqrt(floor.variance):.2%}, at most {most:.2%}"


HEADER = """# The bench against itself, on real machines

Each section was appended by `kvbench selfcheck --append FILE`; the arms are processes that sleep a
stated time.
"""


def markdown(outcomes: list[Outcome], doctor: list[str], when: str) -> str:
    """One record: what was done, what came out, and how noisy the machine was."""
    lines = [f"## {when}", ""]
    lines += ["| what | how | experiments | verdicts | aim | met |", "|---|---|--:|---|---|---|"]
    for outcome in outcomes:
        counted = ", ".join(f"{n} {verdict}" for verdict, n in sorted(outcome.verdicts.items()))
        shown = (outcome.what, outcome.detail, f"{outcome.total}", counted, outcome.aim)
        lines.append(f"| {' | '.join(shown)} | {'yes' if outcome.met else 'NO'} |")
    lines += ["", "The machine at that time (`kvbench doctor`):", ""]
    lines += [f"- {line}" for line in doctor]
    return "\n".join(lines) + "\n"


def read_records(path: Path) -> str:
    """The file of records, or the head of a new one. Raises ``UsageError`` if it cannot be used."""
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: its directory cannot be written to")
    try:
        return path.read_text(encoding="utf-8") if path.exists() else HEADER
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error


def append(record: str, path: Path) -> None:
    """Add a record to the file of records; what it holds stays. Raises ``UsageError``."""
    write_durably(path, f"{read_records(path).rstrip()}\n\n{record}".encode())
