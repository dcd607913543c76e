"""From what a user says to token ids, by the chat template that the model's file carries.

A later turn is only what the template puts after an answer: the end of the answer, the user's words
and the opening of the next answer. So the history is kept as it was decoded, token by token, and
never encoded anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from kvbench.decoder.tokenizer import Tokenizer
from kvbench.errors import UsageError
from kvbench.workloads.conversations import Conversation
from kvbench.workloads.vocabulary import HashedVocabulary

ANSWER = "\u2060answer\u2060"
"""Stands where an answer will be; no template has a reason to touch it."""

PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""For models without a template of their own."""

Messages = list[dict[str, str]]


def turn_tokens(
    conversation: Conversation, *, tokenizer: Tokenizer | None, vocab_size: int | None = None
) -> list[list[int]]:
    """What each turn adds before the model answers; the first is the whole opening.

    Without a tokenizer, ``vocab_size`` ids stand for the bytes (see ``HashedVocabulary``).
    """
    template = (tokenizer.chat_template if tokenizer is not None else None) or PLAIN
    texts = _turn_texts(conversation, template)
    if tokenizer is not None:
        return [tokenizer.encode(text, special=True) for text in texts]
    assert vocab_size is not None
    vocabulary = HashedVocabulary(vocab_size)
    return [vocabulary.encode(0, text)[1:] for text in texts]


def _turn_texts(conversation: Conversation, template: str) -> list[str]:
    messages: Messages = []
    if conversation.system:
        messages.append({"role": "system", "content": conversation.system})
    texts = []
    for number, turn in enumerate(conversation.turns):
        if ANSWER in turn:
            raise UsageError(f"conversation {conversation.name}: a turn holds the answer's mark")
        messages.append({"role": "user", "content": turn})
        whole = _render(template, messages, conversation.name)
        if number:
            _, found, whole = whole.rpartition(ANSWER)
            if not found:
                raise UsageError(
                    f"conversation {conversation.name}: the model's chat template leaves earlier "
                    "answers out, so the history cannot be kept"
                )
        texts.append(whole)
        messages.append({"role": "assistant", "content": ANSWER})
    return texts


def _render(template: str, messages: Messages, name: str) -> str:
    from jinja2 import TemplateError

    try:
        return str(_compiled(template).render(messages=messages, add_generation_prompt=True))
    except TemplateError as error:
        line = str(error).partition("\n")[0]
        raise UsageError(f"conversation {name}: the model's chat template: {line}") from None


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    environment.globals |= {"bos_token": "", "eos_token": ""}
    try:
        return environment.from_string(template)
    except TemplateError as error:
        line = str(error).partition("\n")[0]
        raise UsageError(f"the model's chat template cannot be read: {line}") from None


def conversation_options(
    turns: Sequence[Sequence[Sequence[int]]], stops: Sequence[int], dropped_answers: int
) -> dict[str, Any]:
    """The option of a task that makes its prompts the openings of conversations, one by one."""
    options: dict[str, Any] = {
        "follow_ups": [[list(turn) for turn in conversation[1:]] for conversation in turns],
        "stops": sorted(stops),
    }
    if dropped_answers:
        options["dropped_answers"] = dropped_answers
    return {"conversation": options}
