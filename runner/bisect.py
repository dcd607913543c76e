"""``kvbench bisect``: the first revision of an arm's repository that changes bytes or speed.

Each revision is checked out into a place of its own, built there, and compared with the good one:
by the exactness gate, or by an A/B experiment of the suite.
"""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from kvbench.errors import UsageError
from kvbench.records import Verdict
from kvbench.spec import ArmSpec, Cell, Suite, load_suite, suite_from_builtins
from runner import ab
from runner.gating import gate_report
from runner.plan import new_plan, plain
from runner.tasks import arms_of, task_of

Judgement = Literal["good", "bad", "unknown"]
By = Literal["bytes", "speed"]
GOOD_NAME, BAD_NAME = "good", "revision"


class Found(NamedTuple):
    """The first bad revision, what was tried, and why it is bad."""

    revision: str
    subject: str
    reason: str
    tried: list[tuple[str, Judgement, str]]


class Request(NamedTuple):
    """What to look for."""

    suite: Suite
    cell: Cell
    arm: ArmSpec
    by: By
    build: str | None
    root: Path
    """Where experiments are stored."""


def bisect(
    suite_ref: str,
    arm_name: str,
    good: str,
    bad: str,
    *,
    by: By,
    build: str | None,
    root: Path,
    tell: Callable[[str], None],
) -> Found:
    """Search the first-parent history from ``good`` to ``bad``.

    Raises ``UsageError`` if the arm has no repository, ``bad`` is not bad, or what cannot be judged
    hides the answer.
    """
    request = _request(suite_ref, arm_name, by, build, root)
    assert request.arm.cwd is not None
    repository = Path(request.arm.cwd)
    revisions = _between(repository, good, bad)
    tried: list[tuple[str, Judgement, str]] = []

    with _checked_out(repository, good, build) as reference:

        def judge(index: int) -> tuple[Judgement, str]:
            revision = revisions[index]
            with _checked_out(repository, revision, build) as place:
                judgement, reason = _judge(request, reference, place)
            tried.append((revision, judgement, reason))
            tell(f"{revision[:12]} {_subject(repository, revision)}: {judgement}: {reason}")
            return judgement, reason

        index, reason = first_bad(len(revisions), judge)
    revision = revisions[index]
    return Found(revision, _subject(repository, revision), reason, tried)


def first_bad(count: int, judge: Callable[[int], tuple[Judgement, str]]) -> tuple[int, str]:
    """Binary search for the first bad of ``count`` revisions, the last of which should be bad.

    An unknown one is replaced by its neighbours. Raises ``UsageError`` if the last is not bad, or
    if only unknown ones are left before the answer.
    """
    judgement, reason = judge(count - 1)
    if judgement != "bad":
        raise UsageError(f"the bad revision is {judgement}: {reason}")
    low, high = -1, count - 1  # low is good, high is bad
    while high - low > 1:
        middle = (low + high) // 2
        for index in sorted(range(low + 1, high), key=lambda i: abs(i - middle)):
            judgement, why = judge(index)
            if judgement == "bad":
                high, reason = index, why
                break
            if judgement == "good":
                low = index
                break
        else:
            raise UsageError(f"the {high - low - 1} revisions before the answer cannot be judged")
    return high, reason


def _request(suite_ref: str, arm_name: str, by: By, build: str | None, root: Path) -> Request:
    suite, cells = load_suite(suite_ref)
    if len(cells) != 1:
        raise UsageError(f"{suite_ref}: bisect needs a suite with one cell, not {len(cells)}")
    names = [arm.name for arm in suite.arms]
    if arm_name not in names:
        raise UsageError(f"--arm: {arm_name!r} is no arm of the suite; arms are {', '.join(names)}")
    arm = suite.arm(arm_name)
    if arm.cwd is None:
        raise UsageError(f"{suite_ref}: arm {arm_name!r} has no cwd; it names the arm's repository")
    return Request(suite, cells[0], arm, by, build, root)


def _judge(request: Request, reference: Path, place: Path) -> tuple[Judgement, str]:
    suite, cells = _pair(request, reference, place)
    if request.by == "bytes":
        report = gate_report(suite, arms_of(cells[0], None), task_of(cells[0]))
        if report.outcome == "passed":
            return "good", report.message
        return ("bad" if report.outcome == "mismatch" else "unknown"), report.message
    plan = new_plan(suite, "bisect", ["kvbench", "bisect"])
    summary = ab.start_plan(plan, lambda *_: ab.silent(), root=request.root).summary
    (comparison,) = summary.cells[0].comparisons
    if comparison.verdict in (Verdict.FASTER, Verdict.SLOWER):
        return "bad", f"{comparison.verdict}: {comparison.reason}"
    good = comparison.verdict is Verdict.EQUIVALENT
    return ("good" if good else "unknown"), f"{comparison.verdict}: {comparison.reason}"


def _pair(request: Request, reference: Path, place: Path) -> tuple[Suite, tuple[Cell, ...]]:
    """The suite with two arms: the good revision and this one. Speed is asked without the gate."""
    raw: dict[str, Any] = plain(request.suite)
    arm = msgspec.to_builtins(request.arm)
    raw["arms"] = [
        {**arm, "name": GOOD_NAME, "cwd": str(reference)},
        {**arm, "name": BAD_NAME, "cwd": str(place)},
    ]
    raw["baseline"] = GOOD_NAME
    if request.by == "speed":
        raw["gate"] = "none"
        raw.pop("tolerance", None)
    return suite_from_builtins(raw, "bisect")


@contextmanager
def _checked_out(repository: Path, revision: str, build: str | None) -> Iterator[Path]:
    """The revision in a work tree of its own, built; the place that stands for ``repository``."""
    top = Path(_git(repository, "rev-parse", "--show-toplevel"))
    inside = repository.resolve().relative_to(top.resolve())
    with tempfile.TemporaryDirectory(prefix="kvbench-bisect-") as scratch:
        place = Path(scratch) / "tree"
        _git(top, "worktree", "add", "--detach", "--quiet", str(place), revision)
        try:
            if build is not None:
                _build(build, place / inside, revision)
            yield place / inside
        finally:
            _git(top, "worktree", "remove", "--force", str(place))


def _build(build: str, place: Path, revision: str) -> None:
    done = subprocess.run(
        shlex.split(build), cwd=place, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or ["no output"]
        raise UsageError(f"--build failed at {revision[:12]}: {last[0]}")


def _between(repository: Path, good: str, bad: str) -> list[str]:
    """First-parent revisions after ``good`` up to ``bad``, oldest first."""
    listed = _git(repository, "rev-list", "--first-parent", "--reverse", f"{good}..{bad}")
    revisions = listed.split()
    if not revisions:
        raise UsageError(f"{repository}: there is no revision between {good} and {bad}")
    return revisions


def _subject(repository: Path, revision: str) -> str:
    return _git(repository, "log", "-1", "--format=%s", revision)


def _git(directory: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(directory), *words],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise UsageError(f"{directory}: git {words[0]}: {done.stderr.strip() or 'failed'}")
    return done.stdout.strip()
