"""The reference decoder as arms, and real text as tasks, for the named exactness gates."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from gates.registry import GateOptions
from kvbench.engines.arm import Arm
from kvbench.engines.bind import prompts, workload_name
from kvbench.engines.protocol import Task
from kvbench.spec import Workload

DEFAULT_MODEL = "smollm2"
DELAYS = ("none", "slow_transfer", "slow_compute", "slow_store", "jitter")
"""Without delays a missing wait may pass by luck; each mode leaves another side behind."""

PATHS: dict[str, dict[str, str]] = {
    "carry-device": {"boundary": "carry", "tail": "device"},
    "wait-host": {"boundary": "wait", "tail": "host"},
    "wait-device": {"boundary": "wait", "tail": "device"},
}
"""Each wait of the transport is needed on some of these and redundant on others."""


def model_name(options: GateOptions) -> str:
    """The model that the gate decodes with."""
    return options.model or DEFAULT_MODEL


def baseline(options: GateOptions, **settings: Any) -> Arm:
    """The ordered path: depth 0, never a fault."""
    return Arm(name="ordered", model=model_name(options), settings={**settings, "depth": 0})


def ordered_again(options: GateOptions, **settings: Any) -> Arm:
    """Depth 0 under jitter: nothing may depend on timing there either."""
    return Arm(
        name="depth0-jitter",
        model=model_name(options),
        settings={**settings, "depth": 0, "delays": "jitter"},
    )


def arms(options: GateOptions, depths: Sequence[int], **settings: Any) -> list[Arm]:
    """Every depth on every path, delays in turn: each pair of depth and path has another delay.

    Injected faults go into these arms only.
    """
    planted = {"faults": list(options.inject)} if options.inject else {}
    delays = itertools.cycle(DELAYS)
    return [
        Arm(
            name=f"depth{depth}-{path}-{delay}",
            model=model_name(options),
            settings={
                **settings,
                **PATHS[path],
                "depth": depth,
                "delays": delay,
                **options.settings,
                **planted,
            },
        )
        for (depth, path), delay in zip(itertools.product(depths, PATHS), delays, strict=False)
    ]


def tasks(
    options: GateOptions,
    kinds: Sequence[str],
    lengths: Sequence[int],
    *,
    generate: int,
    sequences: int = 1,
) -> list[Task]:
    """One task per kind and length, each with a nonce of its own."""
    model = model_name(options)
    workloads = [
        Workload(
            kind=kind,
            prompt_tokens=length,
            generate=generate,
            sequences=sequences,
            seed=options.seed,
        )
        for kind in kinds
        for length in lengths
    ]
    return [
        Task(prompts=prompts(model, work), generate=generate, name=workload_name(work))
        for work in workloads
    ]
