"""Gate: no byte of a window can be wrong and unseen.

In audit mode attention folds every byte it reads into a checksum that enters the hash. Random
bytes are flipped in the windows while it reads them: each flip must change the checksum. Some
flips are also made in whole runs, with audit mode and without it: the share of flips that the
logits alone would show is printed, not judged.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

from gates.registry import GateOptions
from gates.transport.harness import IssueOrder, reference
from gates.transport.harness import run as run_scenario
from gates.transport.scenarios import BY_NAME, Scenario
from kvbench.decoder.faults import DelayHooks
from kvbench.device.memory import Span
from kvbench.device.ops import Op
from kvbench.records.gate import Check, GateReport, Outcome

SCENARIOS = ("small", "padded", "padded_q4", "split", "eight")
FLIPS = 1200
WHOLE_RUNS = 40


def run(options: GateOptions) -> GateReport:
    """``FLIPS`` random flips over KV types, layers, K and V, sequences and padding."""
    started = time.monotonic()
    flips = (FLIPS // 6 if options.quick else FLIPS) // len(SCENARIOS)
    runs = WHOLE_RUNS // (4 if options.quick else 1)
    found = []
    for name in SCENARIOS:
        options.progress(f"flips: {name}")
        found.append(_each_read(BY_NAME[name], flips, options.seed))
    options.progress("flips: whole runs")
    found.append(_whole_runs(BY_NAME["small"], runs, options.seed))
    return GateReport(gate="flips", checks=tuple(found), seconds=time.monotonic() - started)


class _FlipReads(DelayHooks):
    """At every attention: flip a byte, read, restore, and compare the audit sums."""

    def __init__(self, seed: int, flips: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.left, self.tried = flips, 0
        self.missed: list[str] = []

    def alter(self, op: Op, queue: str) -> Op:
        """Attention, tried with flips before it runs for real."""
        if op.site != "attend" or self.left <= 0:
            return op
        return _rerun(op, self._try)

    def _try(self, op: Op, handle: Any) -> None:
        reads, writes = op.spans()
        windows = [s for s in reads if _is_window(s)]
        sums = next(s.buffer.raw for s in writes if s.buffer.name.endswith("/sums"))
        before = sums.copy()
        op.run(handle)
        right = sums.copy()
        for _ in range(min(6, self.left)):
            span = self.random.choice(windows)
            at = span.offset + self.random.randrange(span.nbytes)
            bit = 1 << self.random.randrange(8)
            sums[:] = before
            span.buffer.raw[at] ^= bit
            op.run(handle)
            span.buffer.raw[at] ^= bit
            self.left, self.tried = self.left - 1, self.tried + 1
            if (sums == right).all():
                self.missed.append(f"{op.label}: bit {bit} of byte {at} of {span.buffer.name}")
        sums[:] = before
        op.run(handle)


def _each_read(scenario: Scenario, flips: int, seed: int) -> Check:
    hooks = _FlipReads(seed, flips)
    out = run_scenario(scenario, hooks=hooks, picker=IssueOrder(0))
    unchanged = out.digest == reference(scenario).digest and not out.error
    outcome: Outcome = "passed" if not hooks.missed and hooks.tried and unchanged else "mismatch"
    problem = f"; missed: {hooks.missed[0]}" if hooks.missed else ""
    if not unchanged:
        problem += "; the restored run gave another output"
    return Check(
        name=scenario.name,
        outcome=outcome,
        message=f"{hooks.tried} flips, {hooks.tried - len(hooks.missed)} seen{problem}",
    )


@dataclass
class _FlipOnce(DelayHooks):
    """Flips one byte of one window of the ``at``-th attention, for good."""

    seed: int
    at: int
    seen: int = field(default=0)

    def __post_init__(self) -> None:
        super().__init__()

    def alter(self, op: Op, queue: str) -> Op:
        """The chosen attention reads a flipped byte."""
        if op.site != "attend":
            return op
        self.seen += 1
        return _rerun(op, self._flipped) if self.seen - 1 == self.at else op

    def _flipped(self, op: Op, handle: Any) -> None:
        draw = random.Random(self.seed)
        reads, _ = op.spans()
        span = draw.choice([s for s in reads if _is_window(s)])
        at = span.offset + draw.randrange(span.nbytes)
        span.buffer.raw[at] ^= 1 << draw.randrange(8)
        op.run(handle)


def _whole_runs(scenario: Scenario, runs: int, seed: int) -> Check:
    want = reference(scenario)
    plain = run_scenario(scenario, picker=IssueOrder(0), audit=False).digest
    attentions = sum(e.kind == "op" and e.site == "attend" for e in want.log.entries)
    layers = len({e.label for e in want.log.entries if e.site == "attend"})
    draw = random.Random(seed)
    audited = seen = 0
    for i in range(runs):
        at = draw.randrange(2 * layers, attentions)  # the prompts' last layers are read by nothing
        audited += (
            run_scenario(scenario, hooks=_FlipOnce(seed + i, at), picker=IssueOrder(0)).digest
            != want.digest
        )
        seen += (
            run_scenario(
                scenario, hooks=_FlipOnce(seed + i, at), picker=IssueOrder(0), audit=False
            ).digest
            != plain
        )
    outcome: Outcome = "passed" if audited == runs else "mismatch"
    return Check(
        name="whole runs",
        outcome=outcome,
        message=f"{audited} of {runs} flips change the hash in audit mode; "
        f"{seen} of {runs} would show in the logits alone",
        details={"audit": audited, "logits": seen, "runs": runs},
    )


def _is_window(span: Span) -> bool:
    name = span.buffer.name.split("/")[-1]
    return name in ("ring", "window") or name.startswith("kv")


def _rerun(op: Op, how: Any) -> Op:
    return Op(
        op.kind,
        op.label,
        lambda handle: how(op, handle),
        op.reads,
        op.writes,
        op.site,
        op.split,
        op.slot,
        op.nbytes,
        op.flops,
        op.tags,
    )
