"""From a suite's arm and cell to what goes over the wire: settings, prompts."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task
from kvbench.errors import SettingError, UsageError
from kvbench.spec import ArmSpec, Link, Workload

if TYPE_CHECKING:
    from kvbench.decoder.model import Model

REFERENCE = "reference"
NO_MODEL = "none"
"""The suite's model where every arm knows its own: prompts are then text."""
TEXT_ENGINES = frozenset({"openai", "vllm-bench"})
"""Engines that take prompts as text unless their settings say ``prompts = "tokens"``."""
OWN_NAMES = frozenset({REFERENCE, "program", *TEXT_ENGINES})
"""Engines that are given the model's reference as it stands; the others get a file's path."""


def bind_arm(
    spec: ArmSpec,
    model: str,
    *,
    link: Link | None = None,
    affinity: tuple[int, ...] | None = None,
    reuse_declared: bool = False,
) -> Arm:
    """The process to start. ``affinity`` is the suite's; the arm's own comes before it.

    Raises SettingError for what cannot be asked of the engine.
    """
    settings = dict(spec.settings)
    if link is not None:
        settings |= _link(spec, link)
    if reuse_declared and spec.engine != REFERENCE:
        settings["reuse_declared"] = True
    return Arm(
        name=spec.name,
        engine=spec.engine,
        model=model_path(model, spec.engine),
        settings=settings,
        command=list(spec.command),
        env=spec.env,
        cwd=spec.cwd,
        affinity=affinity if spec.affinity is None else spec.affinity,
    )


def bind_task(spec: ArmSpec, model: str, workload: Workload) -> Task:
    """What the arm decodes: prompts of the exact length, equal for every arm that takes ids."""
    as_text = spec.engine in TEXT_ENGINES and spec.settings.get("prompts") != "tokens"
    return Task(
        prompts=prompts(model, workload, as_text=as_text),
        generate=workload.generate,
        warmup=workload.warmup,
        name=workload_name(workload),
    )


def workload_name(workload: Workload) -> str:
    """``prose-1024`` or ``prose-1024x8``."""
    sequences = f"x{workload.sequences}" if workload.sequences > 1 else ""
    return f"{workload.kind}-{workload.prompt_tokens}{sequences}"


def model_path(model: str, engine: str) -> str:
    """What the arm is given to load."""
    if model == NO_MODEL:
        return ""
    if engine in OWN_NAMES or model.startswith("synthetic:"):
        return model
    from kvbench.decoder.model import gguf_path

    return str(gguf_path(model))


def prompts(model: str, workload: Workload, *, as_text: bool = False) -> list[list[int] | str]:
    """One prompt per sequence, each of exactly ``prompt_tokens`` ids of the model's tokenizer."""
    if workload.history == "seeded":
        raise UsageError('workload.history = "seeded" is not available yet; use "text"')
    if model == NO_MODEL:
        raise UsageError('model = "none": prompts need the tokenizer of a model to have a length')
    return [list(p) if isinstance(p, tuple) else p for p in _prompts(model, workload, as_text)]


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
def _open(ref: str) -> Model:
    from kvbench.decoder.model import open_model

    return open_model(ref)


def _link(spec: ArmSpec, link: Link) -> dict[str, Any]:
    """The cpu device's bandwidth, which only the reference decoder can be given."""
    if spec.engine != REFERENCE:
        raise SettingError("link", link.label, "only with the reference engine", f"arm {spec.name}")
    if "link_gb_s" in spec.settings:
        given = spec.settings["link_gb_s"]
        raise SettingError("link_gb_s", given, "not beside the suite's link", f"arm {spec.name}")
    return {"link_gb_s": link.bytes_per_s / 1e9}
