"""Where a failing run first goes wrong: the operation, its layer, and the smallest program.

Both runs are traced: after each operation of the compute queue the bytes that it wrote are hashed.
The first operation whose bytes differ from the ordered run's is where the fault came in. The
program is then shortened, step by step, as long as it still fails.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gates.transport.harness import IssueOrder, Outcome, ordered
from gates.transport.harness import run as run_scenario
from gates.transport.program import Decode, Prefill, Program, Speculate, Step
from gates.transport.scenarios import Scenario
from kvbench.decoder.faults import DelayHooks
from kvbench.device.cpu.explorer import Picker
from kvbench.device.ops import Op

SITES = ("embed", "attn_in", "attend", "recur", "mlp", "head", "choose")
Hooks = Callable[[], DelayHooks]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What ``--explain`` prints."""

    operation: str
    occurrence: int
    program: Program
    """The smallest program found that still fails; run it under ``seed``."""
    seed: int

    def describe(self) -> str:
        """In words."""
        steps = "; ".join(_words(s) for s in self.program)
        return (
            f"first differs after {self.operation!r} (occurrence {self.occurrence}); "
            f"smallest program, order seed {self.seed}: {steps}"
        )


def explain(scenario: Scenario, hooks: Hooks, *, seeds: int = 24) -> Explanation | None:
    """Explain the first failing order of ``scenario`` under ``hooks``; None if none fails."""
    for seed in range(seeds):
        if _fails(scenario, hooks, seed):
            smallest = _shrink(scenario, hooks, seed)
            operation, occurrence = _first_difference(smallest, hooks, seed)
            return Explanation(operation, occurrence, smallest.program, seed)
    return None


def _fails(scenario: Scenario, hooks: Hooks, seed: int) -> bool:
    out = run_scenario(scenario, hooks=hooks(), picker=Picker(seed))
    return bool(out.error) or out.digest != _clean(scenario).digest


def _clean(scenario: Scenario) -> Outcome:
    return ordered(scenario)


def _shrink(scenario: Scenario, hooks: Hooks, seed: int) -> Scenario:
    """Drop steps, then halve counts, while the run still fails."""
    changed = True
    while changed:
        changed = False
        for candidate in _smaller(scenario.program):
            smaller = replace(scenario, program=candidate)
            if _possible(smaller) and _fails(smaller, hooks, seed):
                scenario, changed = smaller, True
                break
    return scenario


def _smaller(program: Program) -> list[Program]:
    out: list[Program] = [
        tuple(s for j, s in enumerate(program) if j != i) for i in range(len(program))
    ]
    for i, step in enumerate(program):
        if isinstance(step, Prefill | Decode | Speculate) and step.count > 1:
            half: Step = replace(step, count=step.count // 2)
            out.append((*program[:i], half, *program[i + 1 :]))
    return out


def _possible(scenario: Scenario) -> bool:
    """Whether the program makes sense at all: its ordered run ends."""
    try:
        return bool(scenario.program) and not _clean(scenario).error
    except (ValueError, KeyError, LookupError):
        return False


@dataclass
class _Trace(DelayHooks):
    """Passes on to ``inner`` and hashes what each compute operation wrote."""

    inner: DelayHooks
    seen: Counter[str] = field(default_factory=Counter)
    digests: dict[tuple[str, int], str] = field(default_factory=dict)
    order: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __getattribute__(self, name: str) -> Any:
        if name in _OWN or name.startswith("__"):
            return object.__getattribute__(self, name)
        return getattr(object.__getattribute__(self, "inner"), name)

    def alter(self, op: Op, queue: str) -> Op:
        """The inner hooks' operation, followed by a hash of what it wrote."""
        op = self.inner.alter(op, queue)
        if op.site not in SITES:
            return op
        key = (op.label, self.seen[op.label])
        self.seen[op.label] += 1
        self.order.append(key)
        spans = op.spans()[1]
        inner = op.run

        def traced(handle: Any) -> None:
            inner(handle)
            state = hashlib.blake2b(digest_size=8)
            for span in spans:
                if not span.buffer.name.endswith("/state"):
                    state.update(span.buffer.raw[span.offset : span.end].tobytes())
            self.digests[key] = state.hexdigest()

        return replace(op, run=traced)


_OWN = {"alter", "inner", "seen", "digests", "order"}


def _first_difference(scenario: Scenario, hooks: Hooks, seed: int) -> tuple[str, int]:
    right, wrong = _Trace(DelayHooks()), _Trace(hooks())
    run_scenario(scenario, hooks=right, picker=IssueOrder(0), depth=0, graphs=False, devices=1)
    run_scenario(scenario, hooks=wrong, picker=Picker(seed))
    for key in right.order:
        if right.digests.get(key) != wrong.digests.get(key):
            return key[0], key[1]
    return "the host's reading of the results", 0


def _words(step: Step) -> str:
    return repr(step)
