"""Concurrent clients against the same questions asked one after another."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gates.exact.compare import first_divergence
from gates.exact.runs import Runs
from gates.exact.words import describe
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Reply, Task
from kvbench.records import Failure
from kvbench.records.gate import Check


def serial_checks(
    runs: Runs, baseline: Arm, arms: Sequence[Arm], task: Task, together: Reply
) -> tuple[list[Check], str]:
    """Each arm serially against the baseline's concurrent output; or a note why not.

    Where the baseline's own output depends on which other rows share its batch, that is a
    property of the engine's kernels and no fault: concurrency is then compared between arms only.
    """
    own = _serially(runs, baseline, task)
    if isinstance(own, Failure):
        return [], f"{task.name}: not compared with serial runs: {own.message}"
    difference = _difference(together, own)
    if difference is not None:
        return [], (
            f"{task.name}: the baseline's own output depends on the batch ({difference}); "
            "concurrent output is compared between arms only"
        )
    checks = [_check(baseline, task, "passed", "asked one by one, the same")]
    for arm in arms:
        alone = _serially(runs, arm, task)
        if isinstance(alone, Failure):
            checks.append(_check(arm, task, "failed", f"{alone.kind}: {alone.message}"))
            continue
        difference = _difference(own, alone)
        if difference is None:
            checks.append(_check(arm, task, "passed", "asked one by one, the same"))
        else:
            checks.append(_check(arm, task, "mismatch", f"asked one by one: {difference}"))
    return checks, ""


def _serially(runs: Runs, arm: Arm, task: Task) -> Reply | Failure:
    """The task's prompts one after another in one process, put together as one reply."""
    tasks = [
        msgspec.structs.replace(task, prompts=[prompt], name=f"{task.name} #{number}")
        for number, prompt in enumerate(task.prompts)
    ]
    replies = []
    for outcome in runs.run(arm, tasks):
        if isinstance(outcome, Failure):
            return outcome
        replies.append(outcome)
    first = replies[0]
    tokens = [row for reply in replies for row in reply.tokens or ()]
    texts = [row for reply in replies for row in reply.texts or ()]
    return msgspec.structs.replace(
        first,
        tokens=tokens or None,
        texts=texts or None,
        top2=None,
        logprobs=None,
        pieces=None,
        stops=None,
    )


def _difference(one: Reply, other: Reply) -> str | None:
    """By tokens and text alone: hashes and byte counts belong to the whole batch."""
    bare = [
        msgspec.structs.replace(
            reply,
            result=msgspec.structs.replace(reply.result, hashes={}, bytes={}, tokens=0),
            top2=None,
            pieces=None,
            stops=None,
        )
        for reply in (one, other)
    ]
    found = first_divergence(bare[0], bare[1])
    return None if found is None else describe(found)


def _check(arm: Arm, task: Task, outcome: str, message: str) -> Check:
    name = f"{arm.name} serial: {task.name}"
    return msgspec.convert(
        {
            "name": name,
            "outcome": outcome,
            "message": message,
            "arm": arm.name,
            "task": task.name,
            "conclusion": {"passed": "same", "mismatch": "different"}.get(outcome, ""),
        },
        Check,
    )
