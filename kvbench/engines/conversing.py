"""The task option ``conversation``: prompts are openings, had one after another on kept history.

    {"conversation": {"follow_ups": [[ids, ...], ...], "stops": [ids], "dropped_answers": n}}

``follow_ups`` has a list for each prompt: what each later turn adds before the model answers.
``generate`` is then the most tokens of an answer, which also ends at one of ``stops``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvbench.engines.protocol import Task
from kvbench.engines.serve import EngineFailure

if TYPE_CHECKING:
    from kvbench.decoder.conversation import ConversationTask

CONVERSATION = "conversation"


class Conversation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the openings go on."""

    follow_ups: list[list[list[int]]] = []
    stops: list[int] = []
    dropped_answers: int = 0
    """Answers in the source that the model's own replace; for the record."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All options of a task that has this one."""

    conversation: Conversation


def conversation_task(task: Task) -> ConversationTask:
    """What the reference decoder is asked for. Raises EngineFailure that names the option."""
    from kvbench.decoder.conversation import ConversationTask

    if task.teacher is not None:
        raise EngineFailure("option", "a conversation cannot be forced along given tokens")
    try:
        option = msgspec.convert(task.options, Options).conversation
    except msgspec.ValidationError as error:
        raise EngineFailure("option", f"task options: {error}") from None
    openings = token_ids(task)
    follow_ups = option.follow_ups or [[] for _ in openings]
    if len(follow_ups) != len(openings):
        raise EngineFailure(
            "option", f"follow_ups: {len(follow_ups)} lists for {len(openings)} prompts"
        )
    return ConversationTask(
        [[opening, *later] for opening, later in zip(openings, follow_ups, strict=True)],
        task.generate,
        frozenset(option.stops),
        task.warmup,
        task.detail,
    )


def token_ids(task: Task) -> list[list[int]]:
    """The prompts as token ids. Raises EngineFailure where one is text."""
    ids = [list(prompt) for prompt in task.prompts if not isinstance(prompt, str)]
    if len(ids) != len(task.prompts):
        raise EngineFailure("prompt", "the reference decoder takes token ids, not text")
    return ids
