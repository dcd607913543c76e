"""An adapter's settings: typed, and refused by name when unknown, wrong or impossible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from kvbench.errors import SettingError, UsageError

T = TypeVar("T", bound=msgspec.Struct)


def parse_settings(raw: Mapping[str, Any], schema: type[T], engine: str) -> T:
    """``raw`` as a ``schema``. Raises SettingError or UsageError naming engine, key and reason."""
    known = schema.__struct_fields__
    for key in raw:
        if key not in known:
            allowed = f"settings of {engine} are {', '.join(known)}"
            raise SettingError(key, raw[key], allowed, f"engine {engine}")
    try:
        return msgspec.convert(dict(raw), schema)
    except msgspec.ValidationError as error:
        raise UsageError(f"engine {engine}: {error}") from None
