"""The reference decoder as arms, and real text as tasks, for the named exactness gates."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from gates.registry import GateOptions
from kvbench.decoder.faults import find as find_fault
from kvbench.decoder.settings import parse
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task

DEFAULT_MODEL = "smollm2"
DELAYS = ("none", "slow_transfer", "slow_compute", "slow_store", "jitter")
"""Without delays a missing wait may pass by luck; each mode leaves another side behind."""

ORDER_SEED = 1
"""Of an adversarial order of the schedule explorer: there a missing wait shows at any speed,
while a delay shows it only where it outlasts what happens beside it."""

PATHS: dict[str, dict[str, str]] = {
    "carry-device": {"boundary": "carry", "tail": "device"},
    "wait-host": {"boundary": "wait", "tail": "host"},
    "wait-device": {"boundary": "wait", "tail": "device"},
}
"""Each wait of the transport is needed on some of these and redundant on others."""


COMPUTED = ("device", "kv_type", "weight_type")
"""What decides the numbers: ``--set`` puts these into every arm, or none could be equal."""


def model_name(options: GateOptions) -> str:
    """The model that the gate decodes with."""
    return options.model or DEFAULT_MODEL


def _arm(options: GateOptions, name: str, **settings: Any) -> Arm:
    """Raises SettingError or UsageError for settings that cannot run, and where they come from."""
    common = {key: options.settings[key] for key in COMPUTED if key in options.settings}
    chosen = {**settings, **common}
    if parse(chosen, source="--set").device == "cuda":
        from kvbench.device.cuda.driver import require

        require()
    return Arm(name=name, model=model_name(options), settings=chosen)


def baseline(options: GateOptions, **settings: Any) -> Arm:
    """The ordered path: depth 0, never a fault."""
    return _arm(options, "ordered", **settings, depth=0)


def ordered_again(options: GateOptions, **settings: Any) -> Arm:
    """Depth 0 under jitter: nothing may depend on timing there either."""
    return _arm(options, "depth0-jitter", **settings, depth=0, delays="jitter")


def resident(options: GateOptions) -> Arm:
    """The transport-free arm: all KV on the device. It moves no windows, and never has a fault."""
    return _arm(options, "resident", resident=True)


def arms(options: GateOptions, depths: Sequence[int], **settings: Any) -> list[Arm]:
    """Every depth on every path, delays in turn: each pair of depth and path has another delay.

    On the cpu device the first depth runs on every path in the explorer's order, too. Injected
    faults go into these arms only. Raises SettingError for one that is unknown.
    """
    for name in options.inject:
        find_fault(name)
    planted = {"faults": list(options.inject)} if options.inject else {}

    def arm(depth: int, path: str, timing: str, **more: Any) -> Arm:
        name = f"depth{depth}-{path}-{timing}"
        chosen = {**settings, **PATHS[path], "depth": depth, **more}
        return _arm(options, name, **{**chosen, **options.settings, **planted})

    timed = zip(itertools.product(depths, PATHS), itertools.cycle(DELAYS), strict=False)
    found = [arm(depth, path, delay, delays=delay) for (depth, path), delay in timed]
    if options.settings.get("device", "cpu") == "cpu":
        found += [arm(depths[0], path, "explored", explore=ORDER_SEED) for path in PATHS]
    return found


def tasks(
    options: GateOptions,
    kinds: Sequence[str],
    lengths: Sequence[int],
    *,
    generate: int,
    sequences: int = 1,
) -> list[Task]:
    """One task per kind and length, each with a nonce of its own."""
    from kvbench.decoder.model import open_model
    from kvbench.workloads import prompt_tokens

    model = open_model(model_name(options))
    found = []
    for kind, length in itertools.product(kinds, lengths):
        prompts: list[list[int] | str] = [
            prompt_tokens(
                kind,
                length,
                tokenizer=model.tokenizer,
                seed=options.seed,
                index=index,
                vocab_size=model.config.vocab_size,
            )
            for index in range(sequences)
        ]
        clients = f"x{sequences}" if sequences > 1 else ""
        found.append(Task(prompts=prompts, generate=generate, name=f"{kind}-{length}{clients}"))
    return found
