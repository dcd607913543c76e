"""METHODOLOGY.md's first verdict: what makes a comparison INVALID, and with which exit code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gates.exact.compare import EXACT_HASHES, moved
from kvbench.records import Result, RunLine
from kvbench.spec import CONVERSATIONS, Cell, Suite
from runner.state import CellState

CACHED_METRIC = "cached_tokens"
"""What arms report of prompts that were not computed afresh (declared; see their settings)."""

USAGE = ("turns", "prompt_tokens", "reused_tokens", "stopped")
"""Counters that say what was done rather than how: the same in every arm that reports them.
(What was drafted and accepted is not among them: arms may differ in their drafts.)"""

EXACTNESS, ENVIRONMENT, ARM = 4, 5, 6


class Invalid(NamedTuple):
    """Why a cell is INVALID, in one line, and the exit code that says so."""

    reason: str
    exit_code: int


def why_invalid(suite: Suite, cell: Cell, state: CellState) -> Invalid | None:
    """The first reason in the order of METHODOLOGY.md, or None."""
    if (gate := _gate(suite, state)) is not None:
        return gate
    if (failed := state.failure) is not None:
        assert failed.failure is not None
        return Invalid(
            f"{failed.arm} failed in block {failed.block + 1}: {failed.failure.kind}: "
            f"{failed.failure.message}",
            ARM,
        )
    runs = [run for run in state.counted if run.result is not None]
    if (outputs := _outputs(suite, cell, runs)) is not None:
        return Invalid(outputs, EXACTNESS)
    if state.changed is not None:
        return Invalid(state.changed, ENVIRONMENT)
    for number in sorted(state.attempts):
        latest = state.attempt(number)
        if latest is not None and latest.void is None and latest.violations:
            return Invalid(
                f"block {number + 1}, after {latest.number + 1} attempts: {latest.violations[0]}",
                ENVIRONMENT,
            )
    return None


def _gate(suite: Suite, state: CellState) -> Invalid | None:
    if suite.gate == "none":
        return None
    if state.gate is None:
        return None if not state.runs else Invalid("the gate was not run", EXACTNESS)
    if state.gate.outcome == "passed":
        return None
    code = ARM if state.gate.outcome == "failed" else EXACTNESS
    return Invalid(f"gate: {state.gate.outcome}: {state.gate.message}", code)


def _outputs(suite: Suite, cell: Cell, runs: Sequence[RunLine]) -> str | None:
    results = [(run, run.result) for run in runs if run.result is not None]
    if (counts := _counts(cell, results)) is not None:
        return counts
    if suite.gate == "exact" and (differs := _hashes(results)) is not None:
        return differs
    if suite.gate != "none" and not suite.bytes_may_differ:
        return _bytes(results)
    return None


def _counts(cell: Cell, results: Sequence[tuple[RunLine, Result]]) -> str | None:
    """Tokens timed, and prompt tokens that a cache served, are the same in all runs.

    Arms that time an answer from its first token leave that one out in each sequence.
    """
    most = cell.workload.generate * cell.workload.sequences
    least = most - cell.workload.sequences
    if not results:
        return None
    first, reference = results[0]
    wanted = reference.metrics.get(CACHED_METRIC, 0.0)
    usage = {name: n for name in USAGE if (n := reference.counters.get(name)) is not None}
    for run, result in results:
        # An answer of a conversation ends where the model ends it.
        if cell.workload.kind != CONVERSATIONS and not least <= result.tokens <= most:
            return f"{_where(run)}: {result.tokens} tokens; the task has {most}"
        if result.tokens != reference.tokens:
            return (
                f"token counts differ: {result.tokens} in {_where(run)}, "
                f"{reference.tokens} in {_where(first)}"
            )
        cached = result.metrics.get(CACHED_METRIC, 0.0)
        in_side_file = (run.details or first.details) and not (result.metrics and reference.metrics)
        if cached != wanted and not in_side_file:
            return (
                f"a cache served {cached:g} prompt tokens in {_where(run)}, "
                f"{wanted:g} in {_where(first)}"
            )
        for name, there in usage.items():
            here = result.counters.get(name)
            if here is not None and here != there:
                return f"{name} differs: {here} in {_where(run)}, {there} in {_where(first)}"
    return None


def _hashes(results: Iterable[tuple[RunLine, Result]]) -> str | None:
    first: dict[str, tuple[RunLine, str]] = {}
    for run, result in results:
        for kind in EXACT_HASHES:
            digest = result.hashes.get(kind)
            if digest is None:
                continue
            other, wanted = first.setdefault(kind, (run, digest))
            if digest != wanted:
                return (
                    f"outputs differ: {kind} hash {digest[:12]} in {_where(run)}, "
                    f"{wanted[:12]} in {_where(other)}"
                )
    return None


def _bytes(results: Iterable[tuple[RunLine, Result]]) -> str | None:
    first: tuple[RunLine, dict[str, int]] | None = None
    for run, result in results:
        counts = moved(result.bytes)
        if not counts:
            continue
        if first is None:
            first = run, counts
        for kind in sorted({*counts, *first[1]}):
            if counts.get(kind, 0) != first[1].get(kind, 0):
                return (
                    f"bytes moved differ: {kind} {counts.get(kind, 0)} in {_where(run)}, "
                    f"{first[1].get(kind, 0)} in {_where(first[0])} "
                    "(declare bytes_may_differ if that is meant)"
                )
    return None


def _where(run: RunLine) -> str:
    return f"{run.arm}, block {run.block + 1}, run {run.position + 1}"
