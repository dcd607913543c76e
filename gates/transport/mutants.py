"""Gate: break one thing at a time, everywhere, and see that something notices.

Every wait and host synchronize of a recorded run is removed in turn: the race check must then
find a conflict, or the removed edge is one that other edges imply; those are listed, since a wait
that nothing needs is a wait too many. Every copy is moved by a row at its source, at its target
and in its size, and into another slot: the digest must change, or the race check must see it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gates.registry import GateOptions
from gates.transport.delivery import STEP, pitch_of
from gates.transport.harness import IssueOrder, reference
from gates.transport.harness import run as run_scenario
from gates.transport.scenarios import BY_NAME, Scenario
from kvbench.decoder.faults import DelayHooks
from kvbench.device.memory import Span
from kvbench.device.oplog import Entry, OpLog
from kvbench.device.races import check
from kvbench.records.capture import TOKEN
from kvbench.records.gate import Check, GateReport, Outcome

SCENARIOS = ("small", "small_wait", "small_host", "small_six", "small_graphs")
"""L mod slots = 1, 1, 1, 0, and a captured graph."""

FORK = "fork"
"""The wait that brings the transfer queue into a capture: CUDA asks for it, though the launch
itself orders the branch already. The one wait that may be implied."""

Mutate = Callable[[Span, Span, int], tuple[Span, Span] | None]


def run(options: GateOptions) -> GateReport:
    """All mutants of all scenarios; quick takes every seventh."""
    started = time.monotonic()
    every = 7 if options.quick else 1
    found: list[Check] = []
    for name in SCENARIOS:
        scenario = BY_NAME[name]
        options.progress(f"mutants: {name}: waits")
        found.append(_waits(scenario, every))
        options.progress(f"mutants: {name}: copies")
        found.append(_copies(scenario, every))
    return GateReport(
        gate="mutants",
        checks=tuple(found),
        seconds=time.monotonic() - started,
        notes=("quick: every seventh mutant",) if options.quick else (),
    )


# ------------------------------------------------------------------------- waits
def _waits(scenario: Scenario, every: int) -> Check:
    log = run_scenario(scenario, picker=IssueOrder(0)).log
    edges = [i for i, e in enumerate(log.entries) if e.kind in ("wait", "sync") and e.record][
        ::every
    ]
    caught, redundant = 0, []
    for index in edges:
        if check(_without(log, index), limit=1):
            caught += 1
        else:
            redundant.append(_name(log.entries[index]))
    idle = sorted(set(redundant) - {r for r in redundant if r.endswith(f" at {FORK}")})
    listed = "; implied by other edges: " + ", ".join(sorted(set(redundant))) if redundant else ""
    outcome: Outcome = "mismatch" if idle else "passed"
    return Check(
        name=f"{scenario.name}: waits",
        outcome=outcome,
        message=f"{len(edges)} waits removed, {caught} caught{listed}",
        details={"redundant": sorted(set(redundant))},
    )


def _without(log: OpLog, index: int) -> OpLog:
    return OpLog(log.entries[:index] + log.entries[index + 1 :])


def _name(entry: Entry) -> str:
    return f"{entry.queue} at {entry.site}"


# ------------------------------------------------------------------------ copies
def _row_later(dst: Span, src: Span, pitch: int) -> tuple[Span, Span] | None:
    return dst, Span(src.buffer, src.offset + pitch, src.length, src.count, src.pitch)


def _row_earlier(dst: Span, src: Span, pitch: int) -> tuple[Span, Span] | None:
    return dst, Span(src.buffer, src.offset - pitch, src.length, src.count, src.pitch)


def _target_later(dst: Span, src: Span, pitch: int) -> tuple[Span, Span] | None:
    return Span(dst.buffer, dst.offset + pitch, dst.length, dst.count, dst.pitch), src


def _shorter(dst: Span, src: Span, pitch: int) -> tuple[Span, Span] | None:
    """Half of the rows, to whole rows: rounding alone may leave the last one unread."""
    length = dst.length // 2 // pitch * pitch
    return (
        Span(dst.buffer, dst.offset, length, dst.count, dst.pitch),
        Span(src.buffer, src.offset, length, src.count, src.pitch),
    )


def _longer(dst: Span, src: Span, pitch: int) -> tuple[Span, Span] | None:
    return (
        Span(dst.buffer, dst.offset, dst.length + pitch, 1, 0),
        Span(src.buffer, src.offset, src.length + pitch, 1, 0),
    )


def _next_slot(dst: Span, src: Span, pitch: int) -> tuple[Span, Span] | None:
    third = dst.buffer.nbytes // 3
    return Span(
        dst.buffer, (dst.offset + third) % dst.buffer.nbytes, dst.length, dst.count, dst.pitch
    ), src


MUTATIONS: dict[str, Mutate] = {
    "source a row later": _row_later,
    "source a row earlier": _row_earlier,
    "target a row later": _target_later,
    "half the size": _shorter,
    "a row longer": _longer,
    "next slot": _next_slot,
}


@dataclass
class _OneCopy(DelayHooks):
    """Mutates the ``at``-th delivery; counts all of them."""

    mutate: Mutate
    at: int
    pitch: int
    seen: int = 0
    applied: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def copy_spans(self, dst: Span, src: Span, site: str, split: int) -> tuple[Span, Span]:
        """The mutated spans, where they still lie inside their buffers."""
        if site not in ("early", "late"):
            return dst, src
        self.seen += 1
        if self.seen - 1 != self.at:
            return dst, src
        try:
            changed = self.mutate(dst, src, self.pitch)
        except ValueError:
            return dst, src
        self.applied = changed is not None and changed != (dst, src)
        return changed or (dst, src)


def _copies(scenario: Scenario, every: int) -> Check:
    want = reference(scenario)
    log = run_scenario(scenario, picker=IssueOrder(0)).log
    copies = [e for e in log.entries if e.kind == "op" and e.site in ("early", "late")]
    first = _prompt_copies(log)  # a prompt's last layer is read by nothing
    pitch = pitch_of(scenario)
    missed: list[str] = []
    tried = 0
    for name, mutate in MUTATIONS.items():
        for at in range(first, len(copies), every):
            hooks = _OneCopy(mutate, at, pitch)
            out = run_scenario(scenario, hooks=hooks, picker=IssueOrder(0))
            if not hooks.applied:
                continue
            tried += 1
            unseen = out.digest == want.digest and not out.error and not check(out.log, limit=1)
            if unseen and not _equivalent(log, copies[at], name, pitch):
                missed.append(f"{name} of copy {at} ({copies[at].label})")
    outcome: Outcome = "mismatch" if missed else "passed"
    message = f"{tried} mutated copies, {tried - len(missed)} caught or equivalent"
    return Check(
        name=f"{scenario.name}: copies",
        outcome=outcome,
        message=message + (f"; missed: {missed[0]}" if missed else ""),
        details={"missed": missed[:20]},
    )


def _prompt_copies(log: OpLog) -> int:
    """How many deliveries come before the first decoded token."""
    start = next(i for i, e in enumerate(log.entries) if e.kind == "mark" and e.label == TOKEN)
    return sum(e.kind == "op" and e.site in ("early", "late") for e in log.entries[:start])


def _equivalent(log: OpLog, copy: Entry, mutation: str, pitch: int) -> bool:
    """Rows beyond the sequence's length are moved and never read: a change that touches only them
    is no change. A row more at the end lands on such rows, or on some that are about to be
    delivered; of half a copy only the other half is missing."""
    (target,) = copy.writes
    steps = set(_steps(target))
    if mutation == "a row longer":
        return True
    if mutation == "half the size":
        kept = target.length // 2 // pitch * pitch
        steps -= set(_steps(Span(target.buffer, target.offset, kept, target.count, target.pitch)))
    return not _read_after(log, copy, steps)


def _read_after(log: OpLog, copy: Entry, steps: set[int]) -> bool:
    """Whether some operation reads ``steps`` of what ``copy`` wrote before another writes them."""
    (target,) = copy.writes
    left = set(steps)
    for entry in log.entries[log.entries.index(copy) + 1 :]:
        for span in entry.reads:
            if span.buffer is target.buffer and not left.isdisjoint(_steps(span)):
                return True
        for span in entry.writes:
            if span.buffer is target.buffer:
                left.difference_update(_steps(span))
        if not left:
            return False
    return False


def _steps(span: Span) -> Iterator[int]:
    """The span's bytes, ``STEP`` at a time."""
    for i in range(span.count):
        start = span.offset + i * span.pitch
        yield from range(start, start + span.length, STEP)
