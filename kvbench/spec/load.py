"""Read a TOML suite; every refusal is one line with file, key and reason."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from kvbench.bundled import suites_dir
from kvbench.choices import with_choices
from kvbench.errors import UsageError
from kvbench.spec.cells import Cell, expand
from kvbench.spec.check import check_suite
from kvbench.spec.suite import SUITE_VERSION, Suite

MAX_SUITE_BYTES = 1 << 20


def suite_names() -> tuple[str, ...]:
    """Names of the bundled suites, sorted."""
    return tuple(sorted(path.stem for path in suites_dir().glob("*.toml")))


def find_suite(ref: str) -> Path:
    """The file of a suite given by bundled name or by path. Raises ``UsageError``."""
    if ref.endswith(".toml") or "/" in ref:
        return Path(ref)
    path = suites_dir() / f"{ref}.toml"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", ref) or not path.is_file():
        raise UsageError(
            f"suite {ref!r}: neither a bundled suite ({', '.join(suite_names())}) "
            "nor a path that ends in .toml"
        )
    return path


def load_suite(ref: str) -> tuple[Suite, tuple[Cell, ...]]:
    """The suite ``ref`` (bundled name or path) and its cells. Raises ``UsageError``."""
    path = find_suite(ref)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SUITE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot read the suite: {error.strerror}") from error
    if len(data) > MAX_SUITE_BYTES:
        raise UsageError(f"{path}: larger than {MAX_SUITE_BYTES} bytes; not a suite")
    return parse_suite(data, str(path))


def parse_suite(data: bytes, source: str) -> tuple[Suite, tuple[Cell, ...]]:
    """The suite in ``data``; ``source`` names it in errors. Raises ``UsageError``."""
    try:
        raw = tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise UsageError(f"{source}: not UTF-8 at byte {error.start}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{source}: not TOML: {error}") from error
    return suite_from_builtins(raw, source)


def suite_from_builtins(raw: dict[str, Any], source: str) -> tuple[Suite, tuple[Cell, ...]]:
    """Validate a suite given as plain data (parsed TOML, or a stored plan)."""
    if "grid" in raw and isinstance(raw["grid"], dict):
        grid = dict(raw["grid"])
        raw = {**raw, "grid": grid}
        if "exclude" in grid:
            raise UsageError(f"{source}: grid.exclude: write [[exclude]] tables at the top level")
        raw["grid"] = _flat(grid)
    _require_finite(raw, "", source)
    _require_version(raw, source)
    try:
        suite = msgspec.convert(raw, Suite)
    except msgspec.ValidationError as error:
        raise UsageError(f"{source}: {_explain(with_choices(str(error), Suite))}") from error
    check_suite(suite, source)
    return suite, expand(suite, source)


def _require_version(raw: dict[str, Any], source: str) -> None:
    """Refuse another version before its keys are looked at: they are that version's own."""
    given = raw.get("schema", SUITE_VERSION)
    if type(given) is int and given != SUITE_VERSION:
        raise UsageError(f"{source}: schema: {given}; this kvbench reads {SUITE_VERSION}")


def _require_finite(value: Any, key: str, source: str) -> None:
    """Refuse TOML's inf and nan: no key means them, and a stored plan cannot hold them."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _require_finite(inner, _join(key, str(name)), source)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            _require_finite(inner, f"{key}[{number}]", source)
    elif isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{source}: {key}: {value} is not a finite number")


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """TOML reads ``workload.prompt_tokens = [..]`` as nested tables; axes are dotted names."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`")
_MISSING = re.compile(r"Object missing required field `(.*?)`")


def _explain(message: str) -> str:
    text, _, path = message.partition(" - at `")
    key = path.rstrip("`").removeprefix("$").removeprefix(".").replace("[...]", "[]")
    if match := _UNKNOWN.match(text):
        return f"{_join(key, match[1])}: unknown key"
    if match := _MISSING.match(text):
        return f"{_join(key, match[1])}: missing"
    return f"{key or 'suite'}: {text[0].lower() + text[1:]}"


def _join(table: str, key: str) -> str:
    return f"{table}.{key}" if table else key
