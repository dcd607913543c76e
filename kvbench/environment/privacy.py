"""What records may say about a person's machine: placeholders for paths, a salted machine id."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvbench.assets.cache import cache_root
from kvbench.environment import system
from kvbench.spec.check import is_secret

_REMOVED = "$REMOVED"


def scrub(value: Any, repo: Path | None = None) -> Any:
    """``value`` (JSON-able) with paths replaced by $REPO, $CACHE, $HOME and secrets removed."""
    places = _places(repo)

    def walk(item: Any, key: str = "") -> Any:
        if isinstance(item, dict):
            return {k: walk(v, str(k)) for k, v in item.items()}
        if isinstance(item, list | tuple):
            return _scrub_words([walk(v) for v in item])
        if isinstance(item, str):
            return _REMOVED if item and is_secret(key) else _replace(item, places)
        return item

    return walk(value)


def _scrub_words(words: list[Any]) -> list[Any]:
    """``--api-key X`` and ``--api-key=X`` in a command line lose X."""
    out: list[Any] = []
    for word in words:
        before = out[-1] if out else None
        if isinstance(word, str) and isinstance(before, str) and _is_secret_option(before):
            out.append(word if word.startswith("-") else _REMOVED)
        elif isinstance(word, str) and "=" in word and is_secret(word.partition("=")[0]):
            out.append(word.partition("=")[0] + "=" + _REMOVED)
        else:
            out.append(word)
    return out


def _is_secret_option(word: str) -> bool:
    return word.startswith("-") and "=" not in word and is_secret(word)


def _places(repo: Path | None) -> list[tuple[str, str]]:
    found = [("$CACHE", cache_root()), ("$HOME", Path.home())]
    if repo is not None:
        found.insert(0, ("$REPO", repo))
    found.sort(key=lambda place: -len(str(place[1])))
    return [(name, str(path)) for name, path in found if len(str(path)) > 1]


def _replace(text: str, places: Sequence[tuple[str, str]]) -> str:
    for name, path in places:
        text = re.sub(re.escape(path) + r"(?=[/\\:\s\"']|$)", name.replace("\\", r"\\"), text)
    return text


def machine_id() -> str:
    """16 hex digits: the same for every run by this user on this machine, useless elsewhere."""
    return salted_digest(system.read("/etc/machine-id") or f"{uuid.getnode():x}")


def salted_digest(text: str) -> str:
    """16 hex digits that change with ``text`` and tell nobody else what it is."""
    return hashlib.sha256(f"{_salt()}:{text}".encode()).hexdigest()[:16]


def _salt() -> str:
    """Random, made once per user; where it cannot be kept, ids of two sessions differ."""
    import platformdirs

    path = platformdirs.user_config_path("kvbench") / "salt"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    except OSError:
        return secrets.token_hex(16)
    salt = secrets.token_hex(16)
    with os.fdopen(fd, "w") as file:
        file.write(salt)
    return salt
