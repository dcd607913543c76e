"""Go benchmark text, for benchstat: one result line per counted run, the arm in the name.

``benchstat -col /arm FILE`` then compares the arms. It knows nothing of blocks: its interval is
wider or narrower than kvbench's, and only kvbench's cancels drift.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvbench.records import CellSummary, RunValue, Summary


def render_benchstat(summary: Summary) -> str:
    """Configuration lines, units, then the runs of every cell in run order."""
    return "\n".join(_lines(summary)) + "\n"


def _lines(summary: Summary) -> Iterator[str]:
    yield f"suite: {_value(summary.suite)}"
    yield f"run: {_value(summary.run)}"
    yield f"kvbench: {_value(summary.kvbench)}"
    machine = summary.environment.get("machine", {})
    for key, field in (("goos", "system"), ("goarch", "arch"), ("cpu", "cpu")):
        if machine.get(field):
            yield f"{key}: {_value(machine[field])}"
    yield "Unit tok/s better=higher"
    yield "Unit hash-mismatch better=lower assume=exact"
    for cell in summary.cells:
        yield f"# cell {cell.name}: {'; '.join(f'{c.arm}: {c.verdict}' for c in cell.comparisons)}"
        engines = {arm.name: arm.engine for arm in cell.arms}
        mismatches = _mismatches(cell)
        for run in cell.runs:
            yield _run(cell, run, engines[run.arm], mismatches.get(run.arm, 0))


def _run(cell: CellSummary, run: RunValue, engine: str, mismatch: int) -> str:
    name = f"BenchmarkDecode/engine={_name(engine)}"
    for axis, value in cell.axes.items():
        name += f"/{_name(axis)}={_name(str(value))}"
    name += f"/arm={_name(run.arm)}"
    if run.tok_s is None:
        return f"# {name} failed: {_value(run.failure or '')}"
    if not run.counted:
        return f"# {name} {run.tok_s:.6g} tok/s in a block that was repeated"
    return f"{name} 1 {run.tok_s:.6g} tok/s {mismatch} hash-mismatch"


def _mismatches(cell: CellSummary) -> dict[str, int]:
    """1 for an arm whose outputs differ from the baseline's or from its own."""
    wanted = {c.baseline for c in cell.comparisons}
    baseline = next((arm for arm in cell.arms if arm.name in wanted), None)
    found = {}
    for arm in cell.arms:
        reference = baseline.hashes if baseline is not None else arm.hashes
        shared = set(reference) & set(arm.hashes)
        found[arm.name] = int(any(reference[k] != arm.hashes[k] for k in shared))
    return found


def _name(text: str) -> str:
    """Benchmark names hold no white space; a slash would start another part."""
    return re.sub(r"[^A-Za-z0-9._+,:@-]", "_", text) or "_"


def _value(text: object) -> str:
    return " ".join(str(text).split())
