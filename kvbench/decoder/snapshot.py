"""A prompt's prefill, done once and kept: content-addressed files that every arm starts from.

The key covers whatever may change a bit: model, tokens, KV type, device, and the arithmetic
fingerprint. The file's own hash is checked on every load and goes into the record. Least recently
used snapshots go first when the cache outgrows its cap.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvbench.assets.cache import cache_root
from kvbench.decoder import arithmetic
from kvbench.decoder.model import Model
from kvbench.decoder.settings import DecoderSettings
from kvbench.device.kvtypes import Bytes
from kvbench.errors import AssetError

CAP_BYTES = 4 << 30
FORMAT = 3
"""Of the files, and of what a prefill computes: a new one leaves older snapshots unread."""
_SEAL = 16
"""Bytes of the hash that guards a file's head: its name, the shapes, the digest of the rest."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One sequence's history: rows of every attention layer, states of every recurrent layer."""

    positions: int
    rows: Bytes
    """[attention layers, 2, positions, pitch] uint8."""
    states: Bytes
    """[recurrent layers, d_model * 4] uint8."""
    prefill_s: float
    """Seconds that the prefill took when the snapshot was made; 0 if there was nothing to do."""
    digest: str


def digest_of(rows: Bytes, states: Bytes) -> str:
    """Hex hash of a history's bytes."""
    state = hashlib.blake2b(digest_size=16)
    state.update(np.ascontiguousarray(rows).data)
    state.update(np.ascontiguousarray(states).data)
    return state.hexdigest()


def key(model: Model, tokens: Sequence[int], settings: DecoderSettings) -> str:
    """What a snapshot is filed under."""
    facts = json.dumps(
        [
            FORMAT,
            model.digest,
            settings.kv_type,
            settings.device,
            settings.weight_type,
            arithmetic.fingerprint(),
        ]
    )
    state = hashlib.blake2b(facts.encode(), digest_size=16)
    state.update(np.asarray(tokens, np.int32).tobytes())
    return state.hexdigest()


def load(name: str) -> Snapshot | None:
    """The snapshot filed under ``name``, if it is there and whole; a damaged one is removed."""
    path = _folder() / f"{name}.kv"
    try:
        raw = np.fromfile(path, np.uint8)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AssetError(f"snapshot {path}: {error.strerror}") from None
    found = _parse(raw, name)
    if found is None:
        path.unlink(missing_ok=True)
        return None
    os.utime(path)
    return found


def _parse(raw: Bytes, name: str) -> Snapshot | None:
    size = int.from_bytes(raw[:8].tobytes(), "little")
    start = 8 + _SEAL + size
    text, seal = raw[8 + _SEAL : start].tobytes(), raw[8 : 8 + _SEAL].tobytes()
    if len(raw) < start or seal != _seal(name, text):
        return None
    head = json.loads(text)
    body = raw[start:]
    split = int(np.prod(head["rows"]))
    if len(body) != split + int(np.prod(head["states"])):
        return None
    rows = body[:split].reshape(head["rows"])
    states = body[split:].reshape(head["states"])
    if digest_of(rows, states) != head["digest"]:
        return None
    return Snapshot(head["positions"], rows, states, head["prefill_s"], head["digest"])


def _seal(name: str, head: bytes) -> bytes:
    return hashlib.blake2b(name.encode() + b"\n" + head, digest_size=_SEAL).digest()


def save(name: str, snapshot: Snapshot) -> None:
    """File a snapshot atomically, then trim the cache to its cap."""
    folder = _folder()
    head = json.dumps(
        {
            "positions": snapshot.positions,
            "rows": list(snapshot.rows.shape),
            "states": list(snapshot.states.shape),
            "prefill_s": snapshot.prefill_s,
            "digest": snapshot.digest,
        }
    ).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".staging-", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(len(head).to_bytes(8, "little") + _seal(name, head) + head)
                file.write(np.ascontiguousarray(snapshot.rows).data)
                file.write(np.ascontiguousarray(snapshot.states).data)
            Path(temporary).replace(folder / f"{name}.kv")
        finally:
            Path(temporary).unlink(missing_ok=True)
        trim(CAP_BYTES)
    except OSError as error:
        raise AssetError(f"snapshot in {folder}: {error.strerror}") from None


def trim(cap: int) -> int:
    """Remove least recently used snapshots until at most ``cap`` bytes are kept; bytes removed."""
    found = []
    for path in _folder().glob("*.kv"):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue  # another process trimmed it
        found.append((stat.st_mtime, stat.st_size, path))
    total, removed = sum(size for _, size, _ in found), 0
    for _, size, path in sorted(found):
        if total - removed <= cap:
            break
        path.unlink(missing_ok=True)
        removed += size
    return removed


def _folder() -> Path:
    return cache_root() / "snapshots"
