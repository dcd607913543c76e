"""Gate ``parallel``: 8 seeded clients ask different questions over a non-unified cache."""

from __future__ import annotations

from gates.exact import reference
from gates.exact.cell import CellOptions, gate_cell
from gates.registry import GateOptions
from kvbench.engines.supervisor import Timeouts
from kvbench.records.gate import GateReport
from kvbench.workloads import KINDS

CLIENTS = 8
LENGTH = 256
DEPTHS = (1, 2, 4)
GENERATE = 12


def run(options: GateOptions) -> GateReport:
    """One task per kind, all sequences decoded together; every depth on every path."""
    kinds, depths = list(KINDS), list(DEPTHS)
    notes: tuple[str, ...] = ()
    if options.quick:
        kinds, depths = kinds[:1], [1]
        notes = (f"quick: {kinds[0]}; depth 1 only",)
    return gate_cell(
        reference.baseline(options, unified=False),
        [
            reference.ordered_again(options, unified=False),
            *reference.arms(options, depths, unified=False),
        ],
        reference.tasks(options, kinds, (LENGTH,), generate=GENERATE, sequences=CLIENTS),
        CellOptions(
            gate="parallel",
            timeouts=Timeouts(run=options.timeout_s),
            progress=options.progress,
            notes=notes,
        ),
    )
