"""Gate ``single``: one sequence; every look-ahead depth gives the ordered path's bytes."""

from __future__ import annotations

from dataclasses import replace

from gates.exact import reference
from gates.exact.cell import CellOptions, gate_cell
from gates.registry import GateOptions
from kvbench.engines.supervisor import Timeouts
from kvbench.records.gate import GateReport, merge
from kvbench.workloads import KINDS

LENGTHS = (192, 640)
DEPTHS = (1, 2, 4)
GENERATE = 16


def run(options: GateOptions) -> GateReport:
    """4 kinds × 2 lengths; depths 0, 1, 2, 4, on every path, under changing delays; and, on two
    tasks, an arm without any transport, whose KV never leaves the device."""
    kinds, lengths, depths = list(KINDS), list(LENGTHS), list(DEPTHS)
    notes: tuple[str, ...] = ()
    if options.quick:
        kinds, lengths, depths = kinds[:2], lengths[:1], [1]
        notes = (f"quick: {', '.join(kinds)}; {lengths[0]} tokens; depth 1 only",)
    base = reference.baseline(options)
    staged = [reference.ordered_again(options), *reference.arms(options, depths)]
    resident = [reference.resident(options)]
    found = reference.tasks(options, kinds, lengths, generate=GENERATE)
    cell = CellOptions(
        gate="single",
        timeouts=Timeouts(run=options.timeout_s),
        progress=options.progress,
        notes=notes,
    )
    free = replace(cell, bytes_may_differ=True)
    return merge(
        "single",
        [gate_cell(base, staged, found, cell), gate_cell(base, resident, found[:2], free)],
    )
