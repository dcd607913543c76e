"""Arms on llama.cpp's real server, and prompts for them."""

from __future__ import annotations

from typing import Any

from gates.exact.compare import first_divergence
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task
from kvbench.engines.supervisor import ArmRun, ArmSession, Timeouts
from kvbench.records import Failure
from kvbench.records.gate import Divergence

NO_LLAMA = "llama.cpp's server is not installed: pip install 'kvbench[peer]'"
NO_TORCH = "torch and transformers are not installed: make test-optin"
QUICK = Timeouts(hello=60, prepare=60, run=60, bye=15)
BASE: dict[str, Any] = {"threads": 1, "context": 1024}


def real_arm(model: str, name: str = "a", **settings: Any) -> Arm:
    return Arm(name=name, engine="xllamacpp", model=model, settings=BASE | settings)


def prompts(count: int, length: int = 40) -> list[list[int] | str]:
    return [[32 + (i * 17 + j * j * 7) % 90 for j in range(length)] for i in range(count)]


def failure(run: ArmRun) -> Failure:
    assert isinstance(run.outcome, Failure), run.outcome
    assert "\n" not in run.outcome.message
    return run.outcome


def differences(one: Arm, other: Arm, task: Task, repetitions: int) -> list[Divergence]:
    """What the gate's comparison calls different between two servers that run side by side."""
    with ArmSession(one, QUICK) as left, ArmSession(other, QUICK) as right:
        left.prepare()
        right.prepare()
        pairs = ((left.run(task), right.run(task)) for _ in range(repetitions))
        return [found for a, b in pairs if (found := first_divergence(a, b)) is not None]
