"""The Python face: the same experiments, gates and records as the command line.

import kvbench

summary = kvbench.ab("quick")                        # a bundled suite, a path, or a mapping
reports = kvbench.gate("single", "parallel")         # gates by name, or a suite's own arms
kvbench.assert_exact("my-suite.toml")                # in a test: fails with the first difference

mine = kvbench.Arm(name="mine", engine="llama-server", model="m.gguf", settings={...})
report = kvbench.gate_arms(mine, [theirs], ["a prompt"], generate=64)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gates.exact import CellOptions, gate_cell
from gates.registry import GateOptions, load, names
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task
from kvbench.errors import UsageError
from kvbench.records import Summary
from kvbench.records.gate import Check, Divergence, GateReport
from kvbench.report.gates import gate_lines
from kvbench.spec import load_suite, suite_from_builtins

if TYPE_CHECKING:
    from kvbench.spec import Cell, Suite

__all__ = [
    "Arm",
    "CellOptions",
    "Check",
    "Divergence",
    "GateOptions",
    "GateReport",
    "Summary",
    "Task",
    "ab",
    "assert_exact",
    "gate",
    "gate_arms",
]

SuiteRef = str | Path | Mapping[str, Any]
"""A bundled suite's name, a TOML file, or a suite as data (the keys of docs/FORMAT.md)."""


def ab(suite: SuiteRef, *, out: Path | str = "results", require: str | None = None) -> Summary:
    """Gate a suite's arms, run its blocks, judge; the journal is kept under ``out``.

    ``require`` is ``faster``, ``equivalent`` or ``not-slower``; ``Summary.requirement_met`` and
    ``Summary.exit_code`` say what came of it. Raises KvbenchError as the command would fail.
    """
    import msgspec

    from kvbench.environment import fingerprint
    from runner import ab as runs
    from runner.calibration import floors_for
    from runner.plan import new_plan

    loaded, cells = _load(suite)
    machine = fingerprint()
    name = str(suite) if isinstance(suite, str | Path) else loaded.name
    plan = new_plan(loaded, name, ("kvbench.ab", name), require)
    plan = msgspec.structs.replace(plan, floors=floors_for(cells, loaded, machine))
    silent = nullcontext(_Silent())
    return runs.start_plan(plan, lambda *_: silent, root=Path(out), machine=machine).summary


def gate(
    *wanted: SuiteRef,
    options: GateOptions | None = None,
    must_fail: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[GateReport]:
    """Run gates by name (all default ones without arguments), or gate suites' own arms.

    ``must_fail`` (``ARM`` or ``ARM:KEY=VALUE``) is the negative control of the suites. Nothing is
    raised for a mismatch: see ``GateReport.outcome``. Raises UsageError for an option, or a
    control, that one of ``wanted`` does not know.
    """
    from runner.suite_gate import KnownBad, cells_under, gate_suite

    options = options or GateOptions()
    reports = []
    for one in wanted or names(default_only=True):
        if isinstance(one, str) and one in names():
            if must_fail is not None:
                raise UsageError(f"must_fail goes with a suite; gate {one} has options.inject")
            reports.append(load(one)(options))
            continue
        suite, cells = _load(one)
        cells = cells_under(options, cells)
        bad = KnownBad.parse(must_fail) if must_fail is not None else None
        reports += gate_suite(suite, cells, must_fail=bad, progress=progress)
    return reports


def gate_arms(
    baseline: Arm,
    arms: Sequence[Arm],
    prompts: Sequence[str | list[int]] | Sequence[Task],
    *,
    generate: int = 64,
    options: CellOptions | None = None,
) -> GateReport:
    """Compare arms without a suite: each prompt (text or token ids) is a task of its own."""
    tasks = [
        prompt
        if isinstance(prompt, Task)
        else Task(prompts=[prompt], generate=generate, name=f"prompt {number}")
        for number, prompt in enumerate(prompts)
    ]
    return gate_cell(baseline, arms, tasks, options)


def assert_exact(
    *wanted: SuiteRef, options: GateOptions | None = None, must_fail: str | None = None
) -> None:
    """For other projects' tests: ``gate``, and AssertionError with its report unless all passed."""
    reports = gate(*wanted, options=options, must_fail=must_fail)
    if not reports or any(report.outcome != "passed" for report in reports):
        raise AssertionError("\n".join(["not exact:", *gate_lines(reports)]))


class _Silent:
    """A watcher for programs: what happens is in the journal and in the summary."""

    def doing(self, text: str) -> None:
        """What runs now."""

    def more(self, steps: int) -> None:
        """Runs that are to come again."""

    def step(self, text: str, left_s: float | None = None) -> None:
        """One run is over."""

    def note(self, text: str) -> None:
        """Something to keep on the screen."""


def _load(suite: SuiteRef) -> tuple[Suite, tuple[Cell, ...]]:
    if isinstance(suite, Mapping):
        return suite_from_builtins(dict(suite), "suite")
    return load_suite(str(suite))
