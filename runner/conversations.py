"""From a workload of conversations to a task: openings, follow-ups, and what ends an answer."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from kvbench.errors import UsageError
from kvbench.spec import Workload


@lru_cache(maxsize=8)
def conversations(workload: Workload, model: str) -> tuple[list[list[int] | str], dict[str, Any]]:
    """(openings, options) of the first ``sequences`` conversations, had one after another.

    Raises UsageError where there are fewer, or where a turn has more than ``prompt_tokens``.
    """
    from kvbench.decoder.model import open_model
    from kvbench.workloads import conversations as source
    from kvbench.workloads.chat import conversation_options, turn_tokens

    if workload.history != "text":
        raise UsageError("workload.history: conversations start from their own text")
    found = (
        source.bundled(workload.seed) if workload.path is None else source.load(Path(workload.path))
    )
    where = workload.path or "the bundled set"
    if len(found) < workload.sequences:
        raise UsageError(
            f"workload.sequences = {workload.sequences}: {where} has {len(found)} conversations"
        )
    chosen = found[: workload.sequences]
    own = open_model(model)
    turns = [
        turn_tokens(c, tokenizer=own.tokenizer, vocab_size=own.config.vocab_size) for c in chosen
    ]
    for conversation, tokens in zip(chosen, turns, strict=True):
        longest = max(len(turn) for turn in tokens)
        if longest > workload.prompt_tokens:
            raise UsageError(
                f"conversation {conversation.name}: a turn of {longest} tokens; "
                f"workload.prompt_tokens allows {workload.prompt_tokens}"
            )
    stops = own.tokenizer.eos_ids if own.tokenizer is not None else frozenset[int]()
    dropped = sum(c.dropped_answers for c in chosen)
    return [t[0] for t in turns], conversation_options(turns, sorted(stops), dropped)
