"""For changes that mean to alter numerics: a declared tolerance, named in everything it says."""

from __future__ import annotations

from gates.exact.forced import Forced, compare_forced
from gates.exact.runs import Runs
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Reply, Task
from kvbench.records.gate import Check
from kvbench.spec import Tolerance


def label(tolerance: Tolerance) -> str:
    """``WITHIN A TOLERANCE, NOT EXACT: KL per position ≤ 0.01 nats``."""
    return f"WITHIN A TOLERANCE, NOT EXACT: {_limit(tolerance)}"


def within(
    runs: Runs, baseline: Arm, arm: Arm, task: Task, one: Reply, tolerance: Tolerance, name: str
) -> Check:
    """Both arms on the baseline's tokens; every position must stay within the tolerance."""
    forced = compare_forced(runs, baseline, arm, task, one.tokens)
    measured = _measured(forced, tolerance)
    if measured is None:
        why = forced.missing or "an arm gives too few log probabilities for this tolerance"
        return Check(name, "not checked", f"{label(tolerance)}: {why}", arm.name, task.name)
    value, limit = measured
    details = {"measured": value, "limit": limit, "positions": forced.positions}
    message = f"{label(tolerance)}: largest is {value:.4g} over {forced.positions} positions"
    if value <= limit:
        return Check(name, "passed", message, arm.name, task.name, details=details)
    return Check(
        name,
        "mismatch",
        message,
        arm.name,
        task.name,
        "different",
        forced=forced.describe(),
        details=details,
    )


def _limit(tolerance: Tolerance) -> str:
    if tolerance.kl is not None:
        return f"KL per position ≤ {tolerance.kl:g} nats"
    return f"logit difference per position ≤ {tolerance.logits:g}"


def _measured(forced: Forced, tolerance: Tolerance) -> tuple[float, float] | None:
    if tolerance.kl is not None:
        return None if forced.kl is None else (forced.kl, tolerance.kl)
    assert tolerance.logits is not None
    return None if forced.logit is None else (forced.logit, tolerance.logits)
