"""Dequantised weights on disk, mapped into memory: an arm opens a model in well under a second.

One directory per file digest and format version, built under a lock and renamed into place:
``weights.bin`` (float32, every array on a 64-byte boundary), ``index.json`` (configuration,
places of the arrays, the tokenizer's facts, SHA-256 of every file) and ``tokenizer.json`` when the
file has a tokenizer. What is not as it was written is built again; a file that was left alone
since it was last verified is not read for that.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.assets import cache
from kvbench.assets.digests import file_digest, remembered_digest
from kvbench.decoder.checkpoint import Checkpoint
from kvbench.decoder.config import ModelConfig
from kvbench.decoder.gguf_file import GgufFile
from kvbench.decoder.gguf_tokenizer import TokenizerFiles, read_tokenizer
from kvbench.decoder.weights import Array, align_up

FORMAT = 2
"""Changes whenever the same file would be stored differently."""

WEIGHTS, INDEX, TOKENIZER = "weights.bin", "index.json", "tokenizer.json"


class MappedWeights(Mapping[str, Array]):
    """Weights of a cached model, mapped read-only; pages are shared between processes."""

    def __init__(self, directory: Path, index: Mapping[str, Any]) -> None:
        raw = np.memmap(directory / WEIGHTS, dtype=np.uint8, mode="r").view(np.ndarray)
        self._arrays: dict[str, Array] = {}
        for name, (offset, shape) in index["tensors"].items():
            size = 4 * int(np.prod(shape))
            self._arrays[name] = raw[offset : offset + size].view("<f4").reshape(shape)
        if index["config"]["tied"]:
            self._arrays["head"] = self._arrays["embed"]

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def open_cached(
    path: Path, digest: str
) -> tuple[ModelConfig, MappedWeights, TokenizerFiles | None]:
    """The model in ``path``, a GGUF file or a checkpoint folder, cached now if need be.

    ``digest`` is the SHA-256 that identifies it.
    """
    area = _area()
    directory = area / f"{digest[:32]}-{FORMAT}"
    index = _read_index(directory)
    if index is None:
        with cache.locked(area, digest[:32]):
            index = _read_index(directory)  # another process may have built it meanwhile
            if index is None:
                index = _build(path, directory, digest)
    fields = dict(index["config"])
    fields["layer_kinds"] = tuple(fields["layer_kinds"])
    fields["rope_factors"] = tuple(fields["rope_factors"])
    facts = index["tokenizer"]
    tokenizer = None if facts is None else TokenizerFiles(directory / TOKENIZER, facts)
    return ModelConfig(**fields), MappedWeights(directory, index), tokenizer


def clean() -> int:
    """Remove every cached model; return the bytes freed. Maps that are open stay valid."""
    area, freed = _area(), 0
    for directory in list(area.iterdir()) if area.is_dir() else ():
        if directory.is_dir() and not directory.name.startswith("."):
            with cache.locked(area, directory.name.partition("-")[0]):
                freed += size_of(directory)
                shutil.rmtree(directory)
    return freed


def cached_bytes() -> int:
    """Bytes that cached models take on disk."""
    area = _area()
    return sum(size_of(d) for d in area.iterdir() if d.is_dir()) if area.is_dir() else 0


def size_of(directory: Path) -> int:
    """Bytes of the files in a directory."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def _area() -> Path:
    return cache.cache_root() / "weights"


def _read_index(directory: Path) -> dict[str, Any] | None:
    """The index, or None unless it and the files that it names are as they were written."""
    try:
        seal, _, text = (directory / INDEX).read_text(encoding="utf-8").partition("\n")
        if seal != _seal(text):
            return None
        index: dict[str, Any] = json.loads(text)
        whole = all(
            remembered_digest(directory / name) == digest for name, digest in index["files"].items()
        )
    except (OSError, UnicodeDecodeError):
        return None
    return index if whole else None


def _seal(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _build(path: Path, directory: Path, digest: str) -> dict[str, Any]:
    file = Checkpoint(path) if path.is_dir() else GgufFile(path)
    area = directory.parent
    cache.require_space(area, 4 * file.config.weight_count() + 2**24, f"model {path}")
    with cache.staging(area, digest[:32]) as built:
        if isinstance(file, Checkpoint):
            tokenizer = file.store_tokenizer(built / TOKENIZER)
        else:
            tokenizer = read_tokenizer(file.fields, str(path), built / TOKENIZER)
        tensors = _write_weights(file, built / WEIGHTS)
        index = {
            "format": FORMAT,
            "sha256": digest,
            "config": asdict(file.config),
            "tensors": tensors,
            "tokenizer": tokenizer,
            "files": {path.name: file_digest(path) for path in sorted(built.iterdir())},
        }
        text = json.dumps(index)
        (built / INDEX).write_text(f"{_seal(text)}\n{text}", encoding="utf-8")
        cache.publish(built, directory)
    return index


def _write_weights(file: GgufFile | Checkpoint, target: Path) -> dict[str, tuple[int, list[int]]]:
    """Write every weight; return name -> (offset in bytes, shape)."""
    tensors: dict[str, tuple[int, list[int]]] = {}
    offset = 0
    with target.open("wb") as out:
        for name, shape in file.config.tensor_shapes().items():
            if name == "head" and file.config.tied:
                continue
            data = file.weight(name).astype("<f4", copy=False).tobytes()
            tensors[name] = (offset, list(shape))
            padded = align_up(len(data))
            out.write(data)
            out.write(bytes(padded - len(data)))
            offset += padded
    return tensors
