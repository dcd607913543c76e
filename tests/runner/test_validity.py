"""METHOD, INVALID: each reason alone makes the cell INVALID with its exit code; no other does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kvbench.analysis.order import block_order
from kvbench.records import Failure, GateLine, NoteLine, Result, RunLine, VoidLine
from kvbench.records.lines import Line
from kvbench.spec import parse_suite
from runner.state import State, fold
from runner.validity import why_invalid

SUITE = """
schema = 1
name = "v"
baseline = "a"
model = "none"
blocks = 2
{head}
[workload]
generate = 8
sequences = 2
[[arms]]
name = "a"
engine = "program"
command = ["x"]
[[arms]]
name = "b"
engine = "program"
command = ["x"]
"""
FINE: dict[str, Any] = {
    "tokens": 16,
    "decode_s": 1.0,
    "hashes": {"tokens": "0", "logits": "1", "snapshot": "2"},
    "bytes": {"early": 90, "late": 10, "store": 5},
    "metrics": {"cached_tokens": 3.0},
    "counters": {"reused_tokens": 40, "kernel": 7},
}


def gate(outcome: str) -> GateLine:
    return GateLine(1, "r", "main", outcome, "said", 0.0, 1.0, "e")


def runs(change: dict[str, Any] | None = None, **line: Any) -> list[Line]:
    """Two blocks; the last run of b has a changed result or line."""
    found: list[Line] = []
    for block in range(2):
        for position, arm in enumerate(block_order("ab", block)):
            found.append(
                RunLine(
                    v=1,
                    run="r",
                    cell="main",
                    block=block,
                    attempt=0,
                    position=position,
                    pass_=position // 2,
                    arm=arm,
                    started=float(len(found)),
                    wall_s=1.0,
                    environment="e",
                    result=Result(**FINE),
                )
            )
    last = found[-1]
    assert isinstance(last, RunLine) and last.arm == "b"
    if change is not None:
        last = msgspec.structs.replace(last, result=Result(**{**FINE, **change}))
    found[-1] = msgspec.structs.replace(last, **line)
    return found


def judged(lines: list[Line], head: str = "") -> tuple[int, str] | None:
    suite, (cell,) = parse_suite(SUITE.format(head=head).encode(), "v.toml")
    state: State = fold(lines, [("main", ("a", "b"))])
    why = why_invalid(suite, cell, state.cells["main"])
    return None if why is None else (why.exit_code, why.reason)


def test_nothing_wrong_is_not_invalid() -> None:
    assert judged([gate("passed"), *runs()]) is None


def test_how_an_arm_did_it_may_differ() -> None:
    other_calls = {"counters": {"reused_tokens": 40, "kernel": 9, "drafted": 3}}
    assert judged([gate("passed"), *runs(other_calls)]) is None
    assert judged([gate("passed"), *runs({"counters": {}})]) is None, "an arm may not count"


@pytest.mark.parametrize(
    ("lines", "code", "said"),
    [
        ([gate("mismatch")], 4, "gate: mismatch: said"),
        ([gate("ungateable")], 4, "gate: ungateable"),
        ([gate("failed")], 6, "gate: failed"),
        (runs(), 4, "the gate was not run"),
        ([gate("passed"), *runs({"tokens": 15})], 4, "token counts differ: 15 in b, block 2"),
        ([gate("passed"), *runs({"tokens": 99})], 4, "99 tokens; the task has 16"),
        ([gate("passed"), *runs({"hashes": {"logits": "9"}})], 4, "outputs differ: logits hash 9"),
        (
            [gate("passed"), *runs({"bytes": {"ordered": 99, "store": 5}})],
            4,
            "bytes moved differ: delivered 99",
        ),
        ([gate("passed"), *runs({"metrics": {}})], 4, "a cache served 0 prompt tokens"),
        (
            [gate("passed"), *runs({"counters": {"reused_tokens": 9}})],
            4,
            "reused_tokens differs: 9",
        ),
        (
            [gate("passed"), *runs(result=None, failure=Failure("crash", "exit 1"))],
            6,
            "b failed in block 2: crash: exit 1",
        ),
        (
            [gate("passed"), *runs(violations=("throttled by GPU 0: power cap",))],
            5,
            "block 2, after 1 attempts: throttled by GPU 0: power cap",
        ),
        (
            [
                gate("passed"),
                *runs(),
                NoteLine(1, "r", "environment-changed", "arm b changed", 1.0, {"cell": "main"}),
            ],
            5,
            "arm b changed",
        ),
    ],
)
def test_each_reason(lines: list[Line], code: int, said: str) -> None:
    found = judged(lines)
    assert found is not None and found[0] == code and said in found[1]


@pytest.mark.parametrize(
    ("change", "head"),
    [
        ({"hashes": {"snapshot": "9"}}, ""),  # another prefill's name is not an output
        ({"hashes": {}}, ""),
        ({"bytes": {"ordered": 100, "store": 5}}, ""),  # the same bytes at another time (T9)
        ({"bytes": {"early": 1}}, "bytes_may_differ = true"),
        ({"hashes": {"tokens": "9"}}, 'gate = "none"'),
        ({"hashes": {"tokens": "9"}}, 'gate = "tolerance"\ntolerance = { logits = 0.1 }'),
    ],
)
def test_what_is_allowed_or_declared_is_not_a_reason(change: dict[str, Any], head: str) -> None:
    assert judged([gate("passed"), *runs(change)], head) is None


def test_a_void_attempt_counts_for_nothing() -> None:
    bad = runs(violations=("heat",))
    void = VoidLine(1, "r", "main", 1, 0, "telemetry: heat", 1.0)
    again = [
        msgspec.structs.replace(line, attempt=1)
        for line in runs()
        if isinstance(line, RunLine) and line.block == 1
    ]
    assert judged([gate("passed"), *bad, void, *again]) is None


def test_the_plans_order_is_enforced() -> None:
    lines = runs()
    for wrong in (
        msgspec.structs.replace(lines[0], arm="b"),
        msgspec.structs.replace(lines[0], cell="other"),
        lines[1],
    ):
        with pytest.raises(ValueError, match=r"not the plan's order|has not|appears twice"):
            judged([lines[1], wrong] if wrong is lines[1] else [wrong])
