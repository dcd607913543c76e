"""Gate: operations touch what they declare, and nothing else.

The race check trusts declared ranges, so they are proved: before each operation every byte of
every buffer that it does not declare to read is poisoned; afterwards only declared bytes may have
changed, and what was written must be what the operation writes among healthy neighbours.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gates.registry import GateOptions
from gates.transport import checks
from gates.transport.harness import IssueOrder
from gates.transport.harness import run as run_scenario
from gates.transport.scenarios import BY_NAME, Scenario
from kvbench.decoder.faults import DelayHooks
from kvbench.device.memory import Buffer, Span
from kvbench.device.ops import Op
from kvbench.records.gate import GateReport, Outcome

SCENARIOS = ("small", "small_host", "small_graphs", "padded", "hybrid", "split", "unified")
QUICK = ("small", "padded", "hybrid")


class Prove(DelayHooks):
    """Runs every operation twice: as it is, and with all that it does not read poisoned."""

    def __init__(self, inner: DelayHooks) -> None:
        super().__init__()
        self.inner = inner
        self.buffers: dict[int, Buffer] = {}
        self.problems: list[str] = []
        self.proved = 0

    def copy_spans(self, dst: Span, src: Span, site: str, split: int) -> tuple[Span, Span]:
        """The inner hooks' say; buffers are learned from what is copied."""
        return self.inner.copy_spans(dst, src, site, split)

    def alter(self, op: Op, queue: str) -> Op:
        """The operation with its proof around it."""
        op = self.inner.alter(op, queue)
        return replace(op, run=lambda handle: self._prove(op, handle))

    def _prove(self, op: Op, handle: Any) -> None:
        reads, writes = op.spans()
        for span in (*reads, *writes):
            self.buffers.setdefault(span.buffer.id, span.buffer)
        live = [b for b in self.buffers.values() if b.alive and b.raw is not None]
        before = {b.id: b.raw.copy() for b in live}
        read = {b.id: _mask(b, reads) for b in live}
        written = {b.id: _mask(b, writes) for b in live}
        op.run(handle)
        after = {b.id: b.raw.copy() for b in live}
        for b in live:
            changed = np.flatnonzero((after[b.id] != before[b.id]) & ~written[b.id])
            if changed.size:
                self.problems.append(
                    f"{op.label!r} writes {b.name}[{changed[0]}], which it does not declare"
                )
        for b in live:
            b.raw[:] = before[b.id]
            b.raw[~read[b.id]] = 0xFF
        op.run(handle)
        for b in live:
            kept = b.raw == 0xFF  # declared as a whole, where only the batch's rows are written
            spoiled = np.flatnonzero((b.raw != after[b.id]) & written[b.id] & ~kept)
            if spoiled.size:
                self.problems.append(
                    f"{op.label!r}: {b.name}[{spoiled[0]}] depends on bytes that it does not read"
                )
            b.raw[:] = after[b.id]
        self.proved += 1


def _mask(buffer: Buffer, spans: tuple[Span, ...]) -> Any:
    mask = np.zeros(buffer.nbytes, bool)
    for span in spans:
        if span.buffer is buffer:
            for i in range(span.count):
                start = span.offset + i * span.pitch
                mask[start : start + span.length] = True
    return mask


def run(options: GateOptions) -> GateReport:
    """Prove every operation of some scenarios."""

    def judge(scenario: Scenario) -> tuple[Outcome, str]:
        hooks = Prove(checks.planted(options))
        out = run_scenario(scenario, hooks=hooks, picker=IssueOrder(0))
        if hooks.problems:
            return "mismatch", hooks.problems[0]
        if out.error:
            return "failed", out.error
        return "passed", f"{hooks.proved} operations proved"

    names = QUICK if options.quick else SCENARIOS
    asked = options.inject or options.settings
    chosen = checks.chosen(options) if asked else [BY_NAME[n] for n in names]
    return checks.each("ranges", options, chosen, judge)
