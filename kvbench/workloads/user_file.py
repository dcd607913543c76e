"""A user's own text, or JSONL with one document a line, as a corpus."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from kvbench.errors import UsageError
from kvbench.workloads.corpora import Corpus, paragraphs

MAX_BYTES = 1 << 30
KEYS = ("text", "prompt", "content", "messages")


def user_corpus(path: Path) -> Corpus:
    """The pieces of ``path``: paragraphs of a text, or the documents of a ``.jsonl``, in order.

    A JSONL line is a string, or an object with one of the keys text, prompt, content (strings)
    or messages (a list of objects with role and content). Raises UsageError that names the line.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise UsageError(f"workload {path}: {error.strerror}") from None
    if not path.is_file():
        raise UsageError(f"workload {path}: not a regular file")
    if stat.st_size > MAX_BYTES:
        raise UsageError(f"workload {path}: {stat.st_size / 1e9:.1f} GB; at most 1 GiB is allowed")
    return _read(path.resolve(), stat.st_mtime_ns, stat.st_size)


@cache
def _read(path: Path, _mtime_ns: int, _size: int) -> Corpus:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"workload {path}: not UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise UsageError(f"workload {path}: {error.strerror}") from None
    if path.suffix == ".jsonl":
        lines = enumerate(text.split("\n"), start=1)
        pieces = [_document(path, n, line) for n, line in lines if line.strip()]
    else:
        pieces = list(paragraphs(text))
    pieces = [piece for piece in pieces if piece.strip()]
    if not pieces:
        raise UsageError(f"workload {path}: holds no text")
    return Corpus(tuple(pieces), ordered=True)


def _document(path: Path, number: int, line: str) -> str:
    where = f"workload {path}, line {number}"
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}") from None
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
