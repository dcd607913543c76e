"""Two arms on the same tokens, position by position: what differs when nothing can cascade."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from gates.exact.compare import margin
from gates.exact.runs import Runs
from gates.exact.words import NEAR_TIE
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Reply, Task, Top2
from kvbench.records import Failure


@dataclass(frozen=True, slots=True)
class Forced:
    """A teacher-forced comparison, or ``missing``: why there is none."""

    missing: str = ""
    positions: int = 0
    differing: int = 0
    """Positions whose two best candidates are not equal to the bit."""
    clear: int = 0
    """Positions at which another token is chosen at a clear margin."""
    logit: float | None = None
    """Largest absolute difference of a candidate that both name."""
    kl: float | None = None
    """Largest KL divergence of a position, baseline to arm, in nats; see ``divergence``."""

    def describe(self) -> str:
        """One sentence."""
        if self.missing:
            return f"not available: {self.missing}"
        return (
            f"on the same tokens, the two best candidates differ at {self.differing} of "
            f"{self.positions} positions, the choice at a clear margin at {self.clear}"
        )


def compare_forced(
    runs: Runs, baseline: Arm, arm: Arm, task: Task, tokens: list[list[int]] | None
) -> Forced:
    """Run both on ``tokens`` (the baseline's own). Both must have run before."""
    able = all(runs.can(a, "teacher") for a in (baseline, arm))
    if not able or tokens is None:
        return Forced("an arm cannot be forced onto given tokens")
    task = msgspec.structs.replace(task, teacher=tokens)
    left, right = runs.one(baseline, task), runs.one(arm, task)
    for outcome in (left, right):
        if isinstance(outcome, Failure):
            return Forced(f"an arm failed on given tokens ({outcome.message})")
    assert isinstance(left, Reply) and isinstance(right, Reply)
    if left.top2 is None or right.top2 is None:
        return Forced("an arm gives no logits")
    return _tally(left, right)


def _tally(left: Reply, right: Reply) -> Forced:
    positions = differing = clear = 0
    logit: float | None = None
    for a, b in _pairs(left, right):
        positions += 1
        if a is None or b is None:
            continue
        if tuple(a) != tuple(b):
            differing += 1
            sure = max(margin(a) or 0.0, margin(b) or 0.0)
            clear += a[0] != b[0] and sure > NEAR_TIE
        shared = _shared(a, b)
        if shared:
            logit = max(shared if logit is None else [logit, *shared])
    return Forced("", positions, differing, clear, logit, _largest_kl(left, right))


def _pairs(left: Reply, right: Reply) -> Iterator[tuple[Top2 | None, Top2 | None]]:
    assert left.top2 is not None and right.top2 is not None
    for mine, theirs in zip(left.top2, right.top2, strict=True):
        yield from zip(mine, theirs, strict=False)


def _shared(a: Top2, b: Top2) -> list[float]:
    """Absolute differences of the candidates that both sides name."""
    mine, theirs = {a[0]: a[1], a[2]: a[3]}, {b[0]: b[1], b[2]: b[3]}
    return [abs(mine[token] - theirs[token]) for token in mine if token in theirs]


def _largest_kl(left: Reply, right: Reply) -> float | None:
    if left.logprobs is None or right.logprobs is None:
        return None
    found: float | None = None
    for mine, theirs in zip(left.logprobs, right.logprobs, strict=True):
        for p, q in zip(mine, theirs, strict=False):
            if p and q:
                here = divergence(p, q)
                found = here if found is None else max(found, here)
    return found


def divergence(p: Mapping[str, float], q: Mapping[str, float]) -> float:
    """KL(p ‖ q) in nats over the candidates that both name, everything else taken as one outcome.

    ``p`` and ``q`` map token ids to natural log probabilities. Merging outcomes can only lower a
    KL divergence (data processing), so this is a lower bound of the whole vocabulary's.
    """
    shared = p.keys() & q.keys()
    total = sum(math.exp(p[token]) * (p[token] - q[token]) for token in shared)
    rest_p = max(0.0, 1.0 - sum(math.exp(p[token]) for token in shared))
    rest_q = max(1e-12, 1.0 - sum(math.exp(q[token]) for token in shared))
    if rest_p > 1e-12:
        total += rest_p * math.log(rest_p / rest_q)
    return max(0.0, total)
