"""Waits per token and conversations in report.md; the label of a charged wait."""

from __future__ import annotations

import msgspec

from kvbench.report.markdown import render_markdown
from kvbench.report.waits import wait_table
from tests.report import samples


def test_waits_are_shown_per_token_with_the_conversations() -> None:
    stock = msgspec.structs.replace(
        samples.arm("stock", 50.0),
        tokens=10,
        waits={"get.logits": (10, 0, 0), "draft.graph.done": (30, 5, 20)},
        metrics={"conversation_tok_s": 91.11, "conversation_latency_s": 7.27, "ttft_s": 0.5},
    )
    silent = msgspec.structs.replace(samples.arm("other", 60.0), waits={})
    talk = {"kind": "conversations", "warmup": 2, "sequences": 8}
    cell = msgspec.structs.replace(samples.cell(), arms=(stock, silent), workload=talk)
    summary = samples.summary(cell)
    headings, rows = wait_table(summary)
    assert headings[2:5] == ["waits a token", "elided", "redundant"]
    assert [row[1:] for row in rows] == [
        ["stock", "4.000", "0.5000", "2.000", "91.11", "7.270", "0.5000"]
    ]
    assert "mean conversation latency, s" in render_markdown(summary)
    prose = msgspec.structs.replace(cell, workload={"kind": "prose", "warmup": 5, "sequences": 2})
    assert wait_table(samples.summary(prose))[1][0][2] == "2.000", "warm-up tokens were counted"


def test_nothing_is_shown_where_no_arm_reports_waits() -> None:
    arms = tuple(msgspec.structs.replace(a, waits={}) for a in samples.cell().arms)
    summary = samples.summary(msgspec.structs.replace(samples.cell(), arms=arms))
    assert wait_table(summary)[1] == []
    assert "Waits of the host" not in render_markdown(summary)
