"""The gate before the timing: each cell's arms against its baseline, same build and settings."""

from __future__ import annotations

import time

import msgspec

from gates.exact.cell import CellOptions, gate_cell
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task
from kvbench.engines.supervisor import Timeouts
from kvbench.records import GateLine, Journal
from kvbench.records.gate import GateReport
from kvbench.records.lines import SCHEMA_VERSION
from kvbench.spec import Suite

MAX_MESSAGE = 600


def gate_report(suite: Suite, arms: dict[str, Arm], task: Task) -> GateReport:
    """Every arm against the suite's baseline on the cell's own task."""
    seconds = suite.timeouts.run_s
    options = CellOptions(
        gate=suite.gate,
        timeouts=Timeouts(hello=seconds, prepare=seconds, run=seconds),
        budget_s=suite.timeouts.gate_s,
        bytes_may_differ=suite.bytes_may_differ,
        control_every_arm=suite.process == "attached",
        tolerance=suite.tolerance,
    )
    others = [arm for name, arm in arms.items() if name != suite.baseline]
    return gate_cell(arms[suite.baseline], others, [task], options)


def gate_line(
    run: str, cell: str, arms: dict[str, Arm], report: GateReport, journal: Journal
) -> GateLine:
    """Keep the full report beside the journal, append and return its line."""
    message = report.message
    line = GateLine(
        v=SCHEMA_VERSION,
        run=run,
        cell=cell,
        outcome=report.outcome,
        message=message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…",
        at=time.time(),
        seconds=round(report.seconds, 3),
        environment="",
        arms=tuple(arms),
        report=journal.store_details(msgspec.to_builtins(report)),
    )
    journal.append(line)
    return line
