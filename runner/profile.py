"""Profile a suite: each arm once, in a process and a capture of its own, never timed."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

from kvbench.analysis.nsys import read_nsys
from kvbench.engines.arm import Arm
from kvbench.engines.conversing import CONVERSATION
from kvbench.engines.process import EndOfOutput, LineProcess, LineTimeout
from kvbench.engines.protocol import Task
from kvbench.engines.recorder import Answer, Request
from kvbench.engines.reference import HISTORY
from kvbench.errors import ArmFailure, UsageError
from kvbench.records.capture import Capture, Source
from kvbench.spec import Cell, Link, Suite, load_suite
from runner import nsys
from runner.plan import load_plan
from runner.rehearsal import rehearse, resolve_link
from runner.tasks import arms_of, task_of

Recorder = Literal["auto", "nsys", "cupti", "oplog"]
REFERENCE = "reference"


def profile_suite(
    ref: str, *, cell: str | None, recorder: Recorder, doing: Callable[[str], None]
) -> list[Capture]:
    """One capture an arm of one cell of suite ``ref``, the baseline's first.

    ``cell``: its name, else the first. Raises ``UsageError`` for an arm that cannot be recorded,
    ``ArmFailure`` for one that fails.
    """
    suite, cells = load_suite(ref)
    chosen = _choose(cells, cell)
    link = _link(chosen, suite, doing)
    return _profile(suite, chosen, link, recorder, doing)


def profile_run(
    directory: Path, *, cell: str | None, recorder: Recorder, doing: Callable[[str], None]
) -> list[Capture]:
    """The same for a stored experiment: its plan, and the link it was measured with."""
    plan = load_plan(directory)
    suite, cells = plan.resolve()
    chosen = _choose(cells, cell)
    return _profile(suite, chosen, plan.links.get(chosen.name), recorder, doing)


def _profile(
    suite: Suite, cell: Cell, link: Link | None, recorder: Recorder, doing: Callable[[str], None]
) -> list[Capture]:
    arms, task = arms_of(cell, link), task_of(cell)
    captures = []
    for name in (suite.baseline, *(name for name in arms if name != suite.baseline)):
        doing(f"{name}: recording")
        captures.append(record(arms[name], task, recorder, suite.timeouts.run_s))
    return captures


def _choose(cells: Sequence[Cell], name: str | None) -> Cell:
    if name is None:
        return cells[0]
    for cell in cells:
        if cell.name == name:
            return cell
    raise UsageError(f"no cell {name!r}; there are: {', '.join(cell.name for cell in cells)}")


def _link(cell: Cell, suite: Suite, doing: Callable[[str], None]) -> Link | None:
    if cell.link is None or cell.link.ratio is None:
        return resolve_link(cell.link, None, cell.name)
    doing("calibrating the link")
    baseline = arms_of(cell, None)[suite.baseline]
    rehearsed = rehearse(baseline, task_of(cell), suite.timeouts.run_s, None)
    return resolve_link(cell.link, rehearsed, cell.name)


def record(arm: Arm, task: Task, recorder: Recorder, run_s: float) -> Capture:
    """Run ``arm`` once in a capture. ``auto`` takes nsys for a GPU if it is there."""
    if arm.engine != REFERENCE:
        raise UsageError(
            f"arm {arm.name!r}: engine {arm.engine!r} keeps no op log; record it with nsys "
            "yourself and read it with kvbench profile --import FILE"
        )
    if unknown := sorted(task.options.keys() - {CONVERSATION, HISTORY}):
        raise UsageError(f"a task with {unknown[0]!r} cannot be recorded; use a text workload")
    source = choose_source(arm, recorder)
    with tempfile.TemporaryDirectory(prefix="kvbench-profile-") as directory:
        return _record(arm, task, run_s, Path(directory), source)


def choose_source(arm: Arm, recorder: Recorder) -> Source:
    """``auto``: for a GPU the best that is installed, else the op log."""
    if recorder == "auto":
        if arm.settings.get("device") != "cuda":
            return "oplog"
        if nsys.find_nsys() is not None:
            return "nsys"
        return "cupti" if find_spec("cupti") is not None else "oplog"
    if recorder == "nsys" and nsys.find_nsys() is None:
        raise UsageError("--with nsys: there is no nsys on the PATH; --with oplog needs no tool")
    if recorder == "cupti" and arm.settings.get("device") != "cuda":
        raise UsageError(f"--with cupti: arm {arm.name!r} does not run on a CUDA device")
    return recorder


def _record(arm: Arm, task: Task, run_s: float, directory: Path, source: Source) -> Capture:
    answer_path, request_path = directory / "answer.json", directory / "request.json"
    request = Request(
        arm=arm.name,
        model=arm.model or "smollm2",
        settings=arm.settings,
        prompts=[list(p) for p in task.prompts if not isinstance(p, str)],
        generate=task.generate,
        warmup=max(task.warmup, 1),
        options=task.options,
        answer=str(answer_path),
        source=source,
    )
    request_path.write_bytes(msgspec.json.encode(request))
    argv = [sys.executable, "-P", "-m", "kvbench.engines.recorder", str(request_path)]
    env = arm.environ()
    if source == "nsys":
        argv = nsys.command(nsys.find_nsys() or "nsys", directory / "capture", argv)
        env |= nsys.ENVIRONMENT
    said = _run(argv, env, run_s)
    answer = _answer(arm, answer_path, said)
    assert answer.result is not None
    if answer.capture is not None:
        return answer.capture
    exported = directory / "capture.sqlite"
    if not exported.is_file():
        raise ArmFailure(f"nsys wrote no export for arm {arm.name!r}: {said}")
    return read_nsys(exported, arm.name, answer.result.tokens)


def _run(argv: Sequence[str], env: Mapping[str, str], run_s: float) -> str:
    """Run to the end under the guard; what it said last, in one line."""
    deadline = time.monotonic() + run_s
    lines: list[bytes] = []
    with LineProcess(argv, env=env) as process:
        try:
            while True:
                lines.append(process.read_line(deadline))
        except EndOfOutput:
            process.close(max(0.0, deadline - time.monotonic()))
        except LineTimeout:
            process.close(0.0)
            raise ArmFailure(f"a recorded run did not end within {run_s:g} s") from None
        said = process.stderr().strip().splitlines() or [
            b"".join(lines[-1:]).decode("utf-8", "replace")
        ]
        ended = process.exit.describe() if process.exit else "did not end"
    return f"{ended}: {said[-1]}" if said[-1] else ended


def _answer(arm: Arm, path: Path, said: str) -> Answer:
    try:
        answer = msgspec.json.decode(path.read_bytes(), type=Answer)
    except (OSError, msgspec.DecodeError):
        raise ArmFailure(f"arm {arm.name!r} {said}") from None
    if answer.error:
        raise ArmFailure(f"arm {arm.name!r}: {answer.error}")
    return answer
