"""Versioned data that outlives a process: results, journal lines, verdicts; and their I/O."""

from kvbench.records.journal import Journal, JournalContent, full_result, read_journal
from kvbench.records.lines import GateLine, Line, NoteLine, RunLine, VoidLine
from kvbench.records.result import Failure, Result
from kvbench.records.summary import (
    ArmSummary,
    Assumption,
    CellSummary,
    Comparison,
    Diagnostics,
    GateOutcome,
    RunValue,
    Summary,
    Verdict,
    Warn,
    decode_summary,
    encode_summary,
)

__all__ = [
    "ArmSummary",
    "Assumption",
    "CellSummary",
    "Comparison",
    "Diagnostics",
    "Failure",
    "GateLine",
    "GateOutcome",
    "Journal",
    "JournalContent",
    "Line",
    "NoteLine",
    "Result",
    "RunLine",
    "RunValue",
    "Summary",
    "Verdict",
    "VoidLine",
    "Warn",
    "decode_summary",
    "encode_summary",
    "full_result",
    "read_journal",
]
