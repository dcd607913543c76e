"""The texts tasks are cut from: each kind as a list of pieces, read from its asset.

Prose keeps its order (a task reads on from where it starts); the other kinds are collections of
short documents, which each task meets in an order of its own.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvbench import assets
from kvbench.assets import catalogue
from kvbench.errors import AssetError, UsageError

KINDS = ("prose", "code", "json", "dialogue")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Pieces of text, none empty. ``ordered``: they follow each other as they are listed."""

    pieces: tuple[str, ...]
    ordered: bool


@cache
def corpus(kind: str) -> Corpus:
    """The corpus of a kind, pulled if it is absent. Raises UsageError for an unknown kind."""
    if kind not in _READERS:
        raise UsageError(
            f"workload {kind!r} is unknown; allowed: {', '.join(KINDS)}, or a path to a text or"
            " .jsonl file"
        )
    name, reader, ordered = _READERS[kind]
    directory = assets.ensure(name)
    pieces = tuple(piece for piece in reader(directory) if piece.strip())
    if not pieces:
        raise AssetError(f"asset {name} in {directory} holds no text: kvbench assets pull {name}")
    return Corpus(pieces, ordered)


def paragraphs(text: str, least: int = 1500) -> Iterator[str]:
    """Cut at blank lines into pieces of at least ``least`` characters (the last may be shorter)."""
    gathered: list[str] = []
    size = 0
    for paragraph in text.replace("\r\n", "\n").split("\n\n"):
        gathered.append(paragraph)
        size += len(paragraph)
        if size >= least:
            yield "\n\n".join(gathered) + "\n\n"
            gathered, size = [], 0
    if size:
        yield "\n\n".join(gathered) + "\n\n"


def _prose(directory: Path) -> Iterator[str]:
    for file in sorted(directory.glob("*_gut.txt")):
        yield from paragraphs(file.read_text(encoding="utf-8", errors="replace"))


def _code(directory: Path) -> Iterator[str]:
    with gzip.open(directory / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            problem = json.loads(line)
            yield problem["prompt"].strip("\n") + "\n" + problem["canonical_solution"] + "\n\n"


def _json(directory: Path, rows_together: int = 8) -> Iterator[str]:
    for file in sorted(directory.glob("*.json")):
        if file.name == "asset.json":
            continue
        content = json.loads(file.read_text(encoding="utf-8"))
        rows = content if isinstance(content, list) else [content]
        for first in range(0, len(rows), rows_together):
            document = {"source": file.stem, "first": first}
            document["rows"] = rows[first : first + rows_together]
            yield json.dumps(document, indent=1) + "\n"


def _dialogue(directory: Path) -> Iterator[str]:
    import yaml

    seen: set[str] = set()
    for file in sorted(directory.glob("*.yml")):
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
        for turns in content.get("conversations", []):
            speakers = ("User", "Assistant")
            lines = [f"{speakers[i % 2]}: {turn}\n" for i, turn in enumerate(turns)]
            text = "".join(lines) + "\n"
            if text not in seen:
                seen.add(text)
                yield text


_READERS: Mapping[str, tuple[str, Callable[[Path], Iterator[str]], bool]] = {
    "prose": (catalogue.PROSE, _prose, True),
    "code": (catalogue.CODE, _code, False),
    "json": (catalogue.JSON, _json, False),
    "dialogue": (catalogue.DIALOGUE, _dialogue, False),
}
