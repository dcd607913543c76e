"""From a cell of a suite to what engines understand: arms and one task."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvbench.engines.arm import PROGRAM, Arm, engine_module
from kvbench.engines.protocol import Task
from kvbench.errors import UsageError
from kvbench.spec import CONVERSATIONS, ArmSpec, Cell, Link, Workload
from runner.conversations import conversations

NO_MODEL = "none"
LINK_SETTING = "link_gb_s"
"""Setting by which an arm is told how slow its link is, in 10^9 bytes a second."""
_LENGTHS_FROM = "smollm2"
"""Whose tokenizer measures the text for arms that bring their own model."""


def arm_of(spec: ArmSpec, cell: Cell, link: Link | None) -> Arm:
    """The arm as the supervisor starts it. Raises ``SettingError`` for an unknown engine."""
    settings = dict(spec.settings)
    if link is not None:
        settings[LINK_SETTING] = link.bytes_per_s / 1e9
    arm = Arm(
        name=spec.name,
        engine=spec.engine,
        model="" if cell.model == NO_MODEL else cell.model,
        settings=settings,
        command=list(spec.command),
        env={name: _expanded(name, value) for name, value in spec.env.items()},
        cwd=spec.cwd,
    )
    if spec.engine != PROGRAM:
        engine_module(spec.engine)
    return arm


def _expanded(name: str, value: str) -> str:
    if not value.startswith("$"):
        return value
    try:
        return os.environ[value[1:]]
    except KeyError:
        raise UsageError(f"env.{name}: {value} is not set in this environment") from None


def arms_of(cell: Cell, link: Link | None) -> dict[str, Arm]:
    """Every arm of the cell, by name."""
    return {spec.name: arm_of(spec, cell, link) for spec in cell.arms}


def task_of(cell: Cell) -> Task:
    """The task that every run of the cell decodes. Pulls the model's file if it needs one."""
    if cell.workload.kind == CONVERSATIONS:
        if cell.model == NO_MODEL:
            raise UsageError("workload.kind: conversations need a model whose tokens are known")
        openings, options = conversations(cell.workload, cell.model)
        return Task(
            prompts=openings,
            generate=cell.workload.generate,
            warmup=cell.workload.warmup,
            name=cell.name,
            options=options,
        )
    return Task(
        prompts=_prompts(cell.workload, cell.model),
        generate=cell.workload.generate,
        warmup=cell.workload.warmup,
        name=cell.name,
        options=_options(cell.workload),
    )


def _options(workload: Workload) -> dict[str, Any]:
    if workload.history == "text":
        return {}
    return {"history": {"tokens": workload.prompt_tokens, "seed": workload.seed}}


@lru_cache(maxsize=32)
def _prompts(workload: Workload, model: str) -> list[list[int] | str]:
    sequences = range(workload.sequences)
    if workload.history == "seeded":
        from kvbench.workloads import seeded_prompts

        return [*seeded_prompts(workload.sequences, workload.seed)]
    from kvbench.decoder.model import open_model
    from kvbench.workloads import KINDS, prompt_text, prompt_tokens

    source = _source(workload, KINDS)
    own = open_model(_LENGTHS_FROM if model == NO_MODEL else model)
    if model == NO_MODEL:
        assert own.tokenizer is not None
        return [
            prompt_text(
                source,
                workload.prompt_tokens,
                tokenizer=own.tokenizer,
                seed=workload.seed,
                index=index,
            )
            for index in sequences
        ]
    return [
        prompt_tokens(
            source,
            workload.prompt_tokens,
            tokenizer=own.tokenizer,
            seed=workload.seed,
            index=index,
            vocab_size=own.config.vocab_size,
        )
        for index in sequences
    ]


def _source(workload: Workload, kinds: Any) -> str | Path:
    if workload.path is not None:
        return Path(workload.path)
    if workload.kind not in kinds:
        raise UsageError(
            f"workload.kind: {workload.kind!r} is not allowed; there are {', '.join(kinds)}, "
            f"{CONVERSATIONS}, file"
        )
    return workload.kind
