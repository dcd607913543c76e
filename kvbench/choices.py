"""Which words a key that takes one of a few may have: msgspec's own message does not say."""

from __future__ import annotations

import re
from typing import Any

import msgspec


def with_choices(error: str, kind: type) -> str:
    """msgspec's message about a value of type ``kind``; for a wrong word, the allowed ones too."""
    text, _, path = error.partition(" - at `")
    if not text.startswith("Invalid enum value"):
        return error
    info: Any = msgspec.inspect.type_info(kind)
    for step in re.findall(r"\[\.\.\.\]|\w+", path.removeprefix("$").rstrip("`")):
        info = _inner(info, step)
    words = sorted(str(word) for word in getattr(_plain(info), "values", ()))
    listed = f"{text}; allowed: {', '.join(words)}" if words else text
    return error.replace(text, listed, 1)


def _plain(info: Any) -> Any:
    """Without annotations, and the one part of a union that is not null."""
    while isinstance(info, msgspec.inspect.Metadata):
        info = info.type
    if isinstance(info, msgspec.inspect.UnionType):
        return _plain(next(t for t in info.types if not isinstance(t, msgspec.inspect.NoneType)))
    return info


def _inner(info: Any, step: str) -> Any:
    info = _plain(info)
    if isinstance(info, msgspec.inspect.StructType):
        return next((field.type for field in info.fields if field.encode_name == step), None)
    return getattr(info, "item_type", None) or getattr(info, "value_type", None)
