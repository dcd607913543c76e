"""The gate of one cell: every planted difference is found and named, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gates.exact import CellOptions, gate_cell
from gates.exact.compare import first_divergence, moved
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Reply, Task
from kvbench.engines.supervisor import Timeouts
from kvbench.records import Result
from kvbench.records.gate import Check, GateReport

MakeArm = Callable[..., Arm]


def only(report: GateReport, arm: str) -> list[Check]:
    return [check for check in report.checks if check.arm == arm]


def test_equal_arms_pass(arm: MakeArm, tasks: list[Task]) -> None:
    report = gate_cell(arm("base"), [arm("same"), arm("again")], tasks)
    assert report.outcome == "passed" and report.exit_code == 0
    assert [check.arm for check in report.checks] == ["base"] * 2 + ["same"] * 2 + ["again"] * 2
    assert report.versions == {"base": "1.0", "same": "1.0", "again": "1.0"}
    assert "logits hash" in report.checks[-1].message


def test_a_mismatch_is_named(arm: MakeArm, tasks: list[Task]) -> None:
    """METHOD: first differing position, the tokens, both margins, whether it repeats."""
    bad = arm("bad", at=[2, 7], flip=True)
    report = gate_cell(arm("base"), [bad], tasks)
    assert report.exit_code == 4 and report.outcome == "mismatch"
    right, wrong = only(report, "bad")
    assert right.outcome == "passed" and wrong.outcome == "mismatch"
    assert wrong.task == "four" and wrong.repeats is True and wrong.conclusion == "corrupted"
    found = wrong.divergence
    assert found is not None and (found.sequence, found.position) == (2, 7)
    assert found.baseline is not None and found.arm is not None
    assert found.baseline.token != found.arm.token
    assert (found.baseline.margin, found.arm.margin) == (2.0, 2.0)
    assert "sequence 2, position 7" in wrong.message and "margin 2" in wrong.message
    assert "1 of 64 positions" in wrong.forced and "clear margin at 1" in wrong.forced


def test_a_near_tie_acquits_nothing(arm: MakeArm, tasks: list[Task]) -> None:
    base = arm("base", at=[0, 5], tie=True, margin=0.01)
    bad = arm("bad", at=[0, 5], flip=True, margin=0.01)
    report = gate_cell(base, [bad], tasks)
    assert report.exit_code == 4
    for check in only(report, "bad"):
        assert check.outcome == "mismatch" and check.conclusion == "near-tie"
        assert "acquits nothing" in check.message


def test_equal_tokens_from_other_logits_are_a_mismatch(arm: MakeArm, tasks: list[Task]) -> None:
    report = gate_cell(arm("base"), [arm("noisy", at=[0, 3], noise=True)], tasks)
    check = only(report, "noisy")[0]
    assert check.outcome == "mismatch" and check.divergence is not None
    assert (check.divergence.kind, check.divergence.position) == ("logits", 3)


def test_a_difference_below_the_top_two_is_a_mismatch(arm: MakeArm, tasks: list[Task]) -> None:
    report = gate_cell(arm("base"), [arm("deep", hidden="x")], tasks)
    check = only(report, "deep")[0]
    assert check.outcome == "mismatch" and check.divergence is not None
    assert check.divergence.kind == "logits" and check.divergence.position is None


def test_a_baseline_that_does_not_repeat_is_ungateable(arm: MakeArm, tasks: list[Task]) -> None:
    """Not deterministic is *ungateable*, not wrong; and nothing is compared with it."""
    report = gate_cell(arm("base", at=[0, 4], random=True), [arm("same")], tasks)
    assert report.outcome == "ungateable" and report.exit_code == 4
    assert only(report, "same") == []


def test_an_arm_that_does_not_repeat_is_irreproducible(arm: MakeArm, tasks: list[Task]) -> None:
    report = gate_cell(arm("base"), [arm("racy", at=[0, 4], random=True)], tasks)
    check = only(report, "racy")[0]
    assert check.outcome == "mismatch" and check.conclusion == "irreproducible"
    assert check.repeats is False


def test_every_arm_can_be_run_against_itself(arm: MakeArm, tasks: list[Task]) -> None:
    options = CellOptions(control_every_arm=True)
    report = gate_cell(arm("base"), [arm("racy", at=[0, 4], random=True)], tasks, options)
    assert [c.outcome for c in only(report, "racy")].count("ungateable") == 2


def test_bytes_parity(arm: MakeArm, tasks: list[Task]) -> None:
    """Two arms that move different bytes are not compared without saying so."""
    split = arm("split", bytes={"early": 900, "late": 100, "store": 10})
    assert gate_cell(arm("base"), [split], tasks).outcome == "passed"
    more = arm("more", bytes={"ordered": 1001, "store": 10})
    report = gate_cell(arm("base"), [more], tasks)
    assert report.outcome == "mismatch"
    assert "1000 against 1001" in report.message
    declared = gate_cell(arm("base"), [more], tasks, CellOptions(bytes_may_differ=True))
    assert declared.outcome == "passed"
    assert declared.notes == ("bytes moved were declared to differ",)


def test_a_shorter_output_is_a_mismatch(arm: MakeArm, tasks: list[Task]) -> None:
    report = gate_cell(arm("base"), [arm("short", short=1)], tasks)
    check = only(report, "short")[0]
    assert check.outcome == "mismatch" and check.divergence is not None
    assert check.divergence.position == 15 and "the end" in check.message


def test_text_is_compared_where_there_are_no_tokens(arm: MakeArm, tasks: list[Task]) -> None:
    base = arm("base", texts=True)
    assert gate_cell(base, [arm("same", texts=True)], tasks).outcome == "passed"
    report = gate_cell(base, [arm("bad", texts=True, at=[0, 9], flip=True)], tasks)
    assert report.outcome == "mismatch"


def test_without_margins_they_are_unavailable_not_zero(arm: MakeArm, tasks: list[Task]) -> None:
    report = gate_cell(arm("base"), [arm("bad", no_top2=True, at=[0, 5], flip=True)], tasks)
    assert "margin unavailable" in only(report, "bad")[0].message


def test_an_arm_without_output_is_not_checked(arm: MakeArm, tasks: list[Task]) -> None:
    for base, other in (({}, {"silent": 1}), ({"silent": 1}, {}), ({}, {"texts": 1})):
        report = gate_cell(arm("base", **base), [arm("other", **other)], tasks)
        assert report.outcome == "not checked" and report.exit_code == 4


def test_a_crash_is_a_failure_and_the_next_task_still_runs(arm: MakeArm, tasks: list[Task]) -> None:
    three = [*tasks, Task(name="last", prompts=[[9]], generate=4)]
    report = gate_cell(arm("base"), [arm("bad", crash="four")], three)
    assert [check.outcome for check in only(report, "bad")] == ["passed", "failed", "passed"]
    assert report.exit_code == 6
    assert "planted crash" in report.message


def test_a_hang_is_a_failure(arm: MakeArm, tasks: list[Task]) -> None:
    options = CellOptions(timeouts=Timeouts(run=5.0))  # one run hangs, the other must have time
    report = gate_cell(arm("base"), [arm("bad", hang="four")], tasks, options)
    assert [check.outcome for check in only(report, "bad")] == ["passed", "failed"]


def test_a_mismatch_outweighs_a_crash(arm: MakeArm, tasks: list[Task]) -> None:
    bad = [arm("crash", crash="four"), arm("wrong", at=[0, 0], flip=True)]
    assert gate_cell(arm("base"), bad, tasks).exit_code == 4


def test_what_the_budget_cuts_off_is_reported(arm: MakeArm, tasks: list[Task]) -> None:
    report = gate_cell(arm("base"), [arm("same")], tasks, CellOptions(budget_s=0.0))
    assert report.outcome == "failed" and "budget" in report.message


rows = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=4)


def reply(tokens: list[list[int]], moved_bytes: dict[str, int] | None = None) -> Reply:
    count = sum(map(len, tokens))
    result = Result(tokens=count, decode_s=1.0, bytes=moved_bytes or {})
    return Reply(id=1, result=result, tokens=tokens)


@given(rows, st.data())
def test_any_one_token_change_is_found_at_its_place(
    tokens: list[list[int]], data: st.DataObject
) -> None:
    sequence = data.draw(st.integers(0, len(tokens) - 1))
    position = data.draw(st.integers(0, len(tokens[sequence]) - 1))
    changed = [list(row) for row in tokens]
    changed[sequence][position] += data.draw(st.integers(1, 9))
    assert first_divergence(reply(tokens), reply([list(row) for row in tokens])) is None
    found = first_divergence(reply(tokens), reply(changed))
    assert found is not None and (found.sequence, found.position) == (sequence, position)


@given(
    st.dictionaries(
        st.sampled_from(["early", "late", "ordered", "store", "state"]), st.integers(0, 99)
    )
)
def test_parity_depends_on_what_is_delivered_not_when(kinds: dict[str, int]) -> None:
    late = {**kinds, "ordered": 0, "early": 0, "late": 0}
    late["late"] = sum(kinds.get(kind, 0) for kind in ("early", "late", "ordered"))
    assert first_divergence(
        reply([[1]], kinds), reply([[1]], late)
    ) is None or "delivered" not in moved(kinds)
    more = {**late, "late": late["late"] + 1}
    if "delivered" in moved(kinds):
        assert first_divergence(reply([[1]], kinds), reply([[1]], more)) is not None


@pytest.mark.long
def test_a_planted_change_anywhere_in_64_x_256_is_found() -> None:
    """Issue number: at each of the 16,384 places."""
    base = reply([[(s * 7 + p * 13) % 50000 for p in range(256)] for s in range(64)])
    changed = reply([list(row) for row in base.tokens or []])
    rows = changed.tokens or []
    for sequence in range(64):
        for position in range(256):
            rows[sequence][position] ^= 1
            found = first_divergence(base, changed)
            assert found is not None and (found.sequence, found.position) == (sequence, position)
            rows[sequence][position] ^= 1
    assert first_divergence(base, changed) is None
