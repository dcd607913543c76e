"""From a suite's arm and task to what goes over the wire: settings, command, prompts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from kvbench.engines.arm import PROGRAM, Arm
from kvbench.engines.protocol import Task
from kvbench.errors import SettingError, UsageError
from kvbench.spec import ArmSpec, Model, Workload
from kvbench.spec import Task as RunTask

if TYPE_CHECKING:
    from kvbench.decoder import model as decoder_model

REFERENCE = "reference"
TEXT_ENGINES = frozenset({"openai", "vllm-bench"})
"""Engines that take prompts as text unless their settings say ``prompts = "tokens"``."""
WARMUP_TOKENS = 4
"""Decoded and discarded per warm-up pass."""


def bind(spec: ArmSpec, task: RunTask) -> tuple[Arm, Task]:
    """The arm to start and the task to send. Raises UsageError for what cannot be asked of it."""
    settings = dict(spec.settings)
    if spec.engine == REFERENCE:
        settings |= _reference_settings(spec, task)
    elif spec.faults:
        raise SettingError("faults", spec.faults, "only for the reference engine", spec.name)
    elif task.link is not None:
        raise SettingError("link", task.link.label, "only for the reference engine", spec.name)
    command: list[str] = []
    if spec.engine == PROGRAM:
        command = _command(settings.pop("command", []), spec.name)
    wants_text = spec.engine in TEXT_ENGINES and settings.get("prompts") != "tokens"
    arm = Arm(
        name=spec.name,
        engine=spec.engine,
        model=model_ref(task.model, spec.engine),
        settings=settings,
        command=command,
        env=spec.env,
    )
    return arm, Task(
        prompts=list(prompts(task.model, task.workload, as_text=wants_text)),
        generate=task.workload.generate,
        warmup=task.warmup * WARMUP_TOKENS,
        teacher=[list(row) for row in task.forced] or None,
        detail=task.purpose == "gate",
        name=workload_name(task.workload),
        options=task.options,
    )


def workload_name(workload: Workload) -> str:
    """``prose-1024`` or ``prose-1024x8``."""
    sequences = f"x{workload.sequences}" if workload.sequences > 1 else ""
    return f"{workload.kind}-{workload.prompt_tokens}{sequences}"


def model_ref(model: Model, engine: str) -> str:
    """What the arm is given to load: the reference's own spelling, or a file's path."""
    if model.ref == "synthetic":
        parts = dict(model.synthetic)
        preset = parts.pop("preset", "small")
        ref = ",".join([f"synthetic:{preset}", *(f"{key}={value}" for key, value in parts.items())])
    else:
        ref = model.ref
    if engine in (REFERENCE, PROGRAM) or "/" in ref or ref.startswith("synthetic:"):
        return ref
    from kvbench.decoder.model import gguf_path

    return str(gguf_path(ref))


def prompts(
    model: Model, workload: Workload, *, as_text: bool = False
) -> Sequence[list[int] | str]:
    """One prompt per sequence, each of exactly ``prompt_tokens`` ids of the model's tokenizer."""
    if workload.history == "seeded":
        raise UsageError('workload.history = "seeded" is not available yet; use "text"')
    ref = model_ref(model, REFERENCE)
    return [list(p) if isinstance(p, tuple) else p for p in _prompts(ref, workload, as_text)]


@lru_cache(maxsize=64)
def _prompts(ref: str, workload: Workload, as_text: bool) -> tuple[tuple[int, ...] | str, ...]:
    from kvbench.workloads import prompt_text, prompt_tokens

    model = _open(ref)
    source = workload.path or workload.kind
    n, seed = workload.prompt_tokens, workload.seed
    if not as_text:
        return tuple(
            tuple(
                prompt_tokens(
                    source,
                    n,
                    tokenizer=model.tokenizer,
                    seed=seed,
                    index=index,
                    vocab_size=model.config.vocab_size,
                )
            )
            for index in range(workload.sequences)
        )
    if model.tokenizer is None:
        raise UsageError(f"model {ref} has no tokenizer, so there is no text to send")
    return tuple(
        prompt_text(source, n, tokenizer=model.tokenizer, seed=seed, index=index)
        for index in range(workload.sequences)
    )


@lru_cache(maxsize=2)
def _open(ref: str) -> decoder_model.Model:
    from kvbench.decoder.model import open_model

    return open_model(ref)


def _reference_settings(spec: ArmSpec, task: RunTask) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if spec.faults:
        names = [k if v is True else f"{k}={v}" for k, v in spec.faults.items()]
        settings["faults"] = names
    if task.link is not None:
        if "link_gb_s" in spec.settings:
            raise SettingError(
                "link_gb_s", spec.settings["link_gb_s"], "not beside the suite's link", spec.name
            )
        settings["link_gb_s"] = task.link.bytes_per_s / 1e9
    if task.audit:
        settings["audit"] = True
    return settings


def _command(raw: object, arm: str) -> list[str]:
    try:
        command = msgspec.convert([raw] if isinstance(raw, str) else raw, list[str])
    except msgspec.ValidationError as error:
        raise UsageError(f"arm {arm}: command: {error}") from None
    if not command:
        raise SettingError("command", raw, "a program and its arguments", f"arm {arm}")
    return command
