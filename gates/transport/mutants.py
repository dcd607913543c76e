"""Gate: break one thing at a time, everywhere, and see that something notices.

Every wait of a recorded run is removed in turn: the race check must then find a conflict. A wait
that nothing needs is a wait too many and fails the gate; three are kept on purpose, each with its
reason (``_kept``). Every copy is moved by a row at its source, at its target and in its size, and
into another slot: the digest must change, or the race check must see it. A mutant that neither
sees is equivalent only if no byte that it left different is read before it is written again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gates.registry import GateOptions
from gates.transport.delivery import STEP, pitch_of
from gates.transport.harness import IssueOrder, reference, settings_of
from gates.transport.harness import run as run_scenario
from gates.transport.scenarios import BY_NAME, Scenario
from kvbench.decoder.faults import DelayHooks
from kvbench.decoder.settings import DecoderSettings
from kvbench.device.memory import Span
from kvbench.device.oplog import Entry, OpLog
from kvbench.device.ops import Op
from kvbench.device.races import check
from kvbench.records.capture import TOKEN
from kvbench.records.gate import Check, GateReport, Outcome

SCENARIOS = ("small", "small_wait", "small_host", "small_six", "small_graphs")
"""L mod slots = 1, 1, 1, 0, and a captured graph: waits and copies are mutated."""
WAITS_TOO = (
    "host",
    "host_carry",
    "depth2",
    "few",
    "few_host",
    "blocking",
    "late_stop",
    "reset_host",
    "declined",
)
"""Here waits only: other depths, fewer layers than slots, the origin's loop, history rewritten."""

Mutate = Callable[[Span, Span, int], tuple[Span, Span] | None]


def run(options: GateOptions) -> GateReport:
    """All mutants of all scenarios; quick takes every seventh."""
    started = time.monotonic()
    every = 7 if options.quick else 1
    found: list[Check] = []
    for name in (*SCENARIOS, *WAITS_TOO):
        options.progress(f"mutants: {name}: waits")
        found.append(_waits(BY_NAME[name], every))
    for name in SCENARIOS:
        options.progress(f"mutants: {name}: copies")
        found.append(_copies(BY_NAME[name], every))
    return GateReport(
        gate="mutants",
        checks=tuple(found),
        seconds=time.monotonic() - started,
        notes=("quick: every seventh mutant",) if options.quick else (),
    )


# ------------------------------------------------------------------------- waits
def _waits(scenario: Scenario, every: int) -> Check:
    log = run_scenario(scenario, picker=IssueOrder(0)).log
    settings = settings_of(scenario)
    edges = [i for i, e in enumerate(log.entries) if _binds(e)][::every]
    unneeded = [log.entries[i] for i in edges if not check(_without(log, i), limit=1)]
    kept = Counter(f"{_name(e)}: {_kept(e, settings)}" for e in unneeded if _kept(e, settings))
    idle = sorted({_name(e) for e in unneeded if not _kept(e, settings)})
    message = f"{len(edges)} waits removed, {len(edges) - len(unneeded)} caught"
    if kept:
        message += "; kept on purpose: " + ", ".join(f"{n} x {why}" for why, n in kept.items())
    if idle:
        message += "; implied by other edges: " + ", ".join(idle)
    return Check(
        name=f"{scenario.name}: waits",
        outcome="mismatch" if idle else "passed",
        message=message,
        details={"redundant": idle, "kept": dict(kept)},
    )


def _kept(entry: Entry, settings: DecoderSettings) -> str:
    """Why a wait is made that this run did not need; empty: it is one too many."""
    if entry.site == "fork":
        return "a queue enters a CUDA capture by a wait only; first in a graph it adds no edge"
    if entry.site == "close":
        return "the last step's results had been waited for; after a prompt none were"
    if entry.site == "boundary" and (settings.boundary, settings.tail) == ("wait", "host"):
        return "boundary = wait is T4 to the letter; waits for late tails cover its stores"
    return ""


def _binds(entry: Entry) -> bool:
    return entry.kind in ("wait", "sync") and bool(entry.record or "queue" in entry.tags)


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
    """Mutates the ``at``-th delivery; counts all of them, and notes what each run of it spoils."""

    mutate: Mutate
    at: int
    pitch: int
    seen: int = 0
    spoiled: list[set[int]] = field(default_factory=list)
    """For each time the mutant ran: its buffer's bytes, by ``STEP``, that it left different."""
    _spans: tuple[Span, Span, Span, Span] | None = None

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
        if changed is None or changed == (dst, src):
            return dst, src
        self._spans = (dst, src, *changed)
        return changed

    def alter(self, op: Op, queue: str) -> Op:
        """The mutant leaves a note each time it runs, in a replayed graph too."""
        op, spans = super().alter(op, queue), self._spans
        if spans is None:
            return op
        self._spans = None

        def run(native: Any) -> None:
            self.spoiled.append(_difference(*spans))
            op.run(native)

        return replace(op, run=run, tags={**op.tags, MUTANT: True})


MUTANT = "mutant"


def _difference(dst: Span, src: Span, wrong_dst: Span, wrong_src: Span) -> set[int]:
    """Where the target buffer differs, now, after the mutated copy and after the right one."""
    right, wrong = dst.buffer.raw.copy(), dst.buffer.raw.copy()
    for image, to, of in ((right, dst, src), (wrong, wrong_dst, wrong_src)):
        for i in range(to.count):
            a, b = to.offset + i * to.pitch, of.offset + i * of.pitch
            image[a : a + to.length] = of.buffer.raw[b : b + of.length]
    return {int(at) // STEP * STEP for at in np.flatnonzero(right != wrong)}


def _copies(scenario: Scenario, every: int) -> Check:
    want = reference(scenario)
    log = run_scenario(scenario, picker=IssueOrder(0)).log
    total = sum(e.kind == "op" and e.site in ("early", "late") for e in log.entries)
    first = _prompt_copies(log)  # a prompt's last layer is read by nothing
    pitch = pitch_of(scenario)
    missed: list[str] = []
    tried = caught = 0
    for name, mutate in MUTATIONS.items():
        for at in range(first, total, every):
            hooks = _OneCopy(mutate, at, pitch)
            out = run_scenario(scenario, hooks=hooks, picker=IssueOrder(0))
            if not hooks.spoiled:
                continue
            tried += 1
            if out.digest != want.digest or out.error or check(out.log, limit=1):
                caught += 1
            elif _read(out.log, hooks.spoiled):
                missed.append(f"{name} of copy {at}")
    outcome: Outcome = "mismatch" if missed else "passed"
    same = tried - caught - len(missed)
    message = f"{tried} mutated copies, {caught} caught, {same} change no byte that is read"
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


def _read(log: OpLog, spoiled: list[set[int]]) -> bool:
    """Whether an operation reads a byte that a run of the mutant left different.

    Bytes may be the same by chance (layer 0's V of a token that comes twice), lie beyond the
    sequence's length, or be delivered again before they are read.
    """
    runs = [i for i, e in enumerate(log.entries) if MUTANT in e.tags]
    return any(_read_after(log.entries, at, steps) for at, steps in zip(runs, spoiled, strict=True))


def _read_after(entries: list[Entry], at: int, steps: set[int]) -> bool:
    """Whether ``steps`` of what entry ``at`` wrote are read before they are written again."""
    (target,) = entries[at].writes
    left = set(steps)
    for entry in entries[at + 1 :]:
        if not left:
            return False
        for span in entry.reads:
            if span.buffer is target.buffer and not left.isdisjoint(_steps(span)):
                return True
        for span in entry.writes:
            if span.buffer is target.buffer:
                left.difference_update(_steps(span))
    return False


def _steps(span: Span) -> Iterator[int]:
    """The span's bytes, ``STEP`` at a time."""
    for i in range(span.count):
        start = span.offset + i * span.pitch
        yield from range(start, start + span.length, STEP)
