"""A user's own text, or JSONL with one document a line, as a corpus."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from kvbench.errors import UsageError
from kvbench.workloads.corpora import Corpus, paragraphs
from kvbench.workloads.files import identify, json_lines, read_text

KEYS = ("text", "prompt", "content", "messages")


def user_corpus(path: Path) -> Corpus:
    """The pieces of ``path``: paragraphs of a text, or the documents of a ``.jsonl``, in order.

    A JSONL line is a string, or an object with one of the keys text, prompt, content (strings)
    or messages (a list of objects with role and content). Raises UsageError that names the line.
    """
    return _read(*identify(path))


@cache
def _read(path: Path, _mtime_ns: int, _size: int) -> Corpus:
    if path.suffix == ".jsonl":
        pieces = [_document(where, value) for where, value in json_lines(path)]
    else:
        pieces = list(paragraphs(read_text(path)))
    pieces = [piece for piece in pieces if piece.strip()]
    if not pieces:
        raise UsageError(f"workload {path}: holds no text")
    return Corpus(tuple(pieces), ordered=True)


def _document(where: str, value: Any) -> str:
    if isinstance(value, str):
        return value + "\n"
    if isinstance(value, dict):
        for key in KEYS:
            if isinstance(value.get(key), str):
                return str(value[key]) + "\n"
        if isinstance(value.get("messages"), list):
            return "".join(_message(where, message) for message in value["messages"])
    raise UsageError(f"{where}: needs a string, or an object with one of {', '.join(KEYS)}")


def _message(where: str, message: Any) -> str:
    if isinstance(message, dict) and isinstance(message.get("content"), str):
        return f"{message.get('role', 'user')}: {message['content']}\n"
    raise UsageError(f"{where}: each message needs a string 'content'")
