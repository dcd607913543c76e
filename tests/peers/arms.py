"""Arms on llama.cpp's real server, and prompts for them."""

from __future__ import annotations

from typing import Any

from kvbench.engines.arm import Arm
from kvbench.engines.supervisor import ArmRun, Timeouts
from kvbench.records import Failure

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
