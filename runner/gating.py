"""The gate before the timing: each cell's arms against its baseline, same build and settings."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from gates.exact.cell import CellOptions, gate_cell
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task
from kvbench.engines.supervisor import Timeouts
from kvbench.records import GateLine, Journal
from kvbench.records.lines import SCHEMA_VERSION
from kvbench.spec import Suite

MAX_MESSAGE = 600


def run_gate(
    suite: Suite,
    run: str,
    cell: str,
    arms: dict[str, Arm],
    task: Task,
    journal: Journal,
    doing: Callable[[str], None],
) -> GateLine:
    """Gate one cell, keep the full report beside the journal, append and return its line."""
    started = time.time()
    begin = time.monotonic()
    timeouts = Timeouts(
        hello=suite.timeouts.run_s, prepare=suite.timeouts.run_s, run=suite.timeouts.run_s
    )
    report = gate_cell(
        arms[suite.baseline],
        [arm for name, arm in arms.items() if name != suite.baseline],
        [task],
        CellOptions(
            gate=suite.gate,
            timeouts=timeouts,
            budget_s=suite.timeouts.gate_s,
            bytes_may_differ=suite.bytes_may_differ,
            progress=lambda text: doing(f"{cell}, gate: {text}"),
        ),
    )
    message = report.message
    line = GateLine(
        v=SCHEMA_VERSION,
        run=run,
        cell=cell,
        outcome=report.outcome,
        message=message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…",
        at=started,
        seconds=round(time.monotonic() - begin, 3),
        environment="",
        arms=tuple(arms),
        report=journal.store_details(msgspec.to_builtins(report)),
    )
    journal.append(line)
    return line
