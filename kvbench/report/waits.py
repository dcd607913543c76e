"""How often each arm waited per token, and what its conversations were like."""

from __future__ import annotations

from kvbench.records import ArmSummary, CellSummary, Summary
from kvbench.report.words import NONE, number
from kvbench.spec import CONVERSATIONS

CONVERSATION = {
    "conversation_tok_s": "mean conversation tok/s",
    "conversation_latency_s": "mean conversation latency, s",
    "ttft_s": "time to first token, s",
}
COUNTS = ("waits a token", "elided", "redundant")


def wait_table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """(headings, rows): one row for each arm that reports waits; no rows where none does."""
    arms = [(cell, arm) for cell in summary.cells for arm in cell.arms if arm.waits and arm.tokens]
    shown = {k: v for k, v in CONVERSATION.items() if any(k in arm.metrics for _, arm in arms)}
    rows = [
        [
            cell.name,
            arm.name,
            *(number(share) for share in _per_token(cell, arm)),
            *(number(arm.metrics[key]) if key in arm.metrics else NONE for key in shown),
        ]
        for cell, arm in arms
    ]
    return ["cell", "arm", *COUNTS, *shown.values()], rows


def _per_token(cell: CellSummary, arm: ArmSummary) -> list[float]:
    """(made, elided, redundant) over all tokens decoded: but for conversations a run's counts
    include its warm-up."""
    assert arm.tokens
    workload = cell.workload
    warmup = 0 if workload.get("kind") == CONVERSATIONS else workload.get("warmup", 0)
    tokens = arm.tokens + warmup * workload.get("sequences", 1)
    return [sum(count[i] for count in arm.waits.values()) / tokens for i in range(3)]
