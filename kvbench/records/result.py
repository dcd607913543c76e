"""What one run of one arm produced: the payload of the arm protocol and of a journal line."""

from __future__ import annotations

from typing import Any

import msgspec


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a run gave no measurement. ``kind`` is stable; ``message`` is one line for people."""

    kind: str
    message: str


class Result(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One run's measurement.

    ``tokens`` / ``decode_s`` is what is judged (M2). Everything else explains it.
    """

    tokens: int
    """Generated tokens over which ``decode_s`` was taken (all sequences together)."""
    decode_s: float
    """Seconds of wall clock, by the arm's monotonic clock around the decode loop."""
    metrics: dict[str, float] = {}
    """Further numbers, name with unit: ``prefill_tok_s``, ``ttft_s``, ``link_gb_s`` ..."""
    hashes: dict[str, str] = {}
    """Hex digests: ``tokens``, ``logits``, ``audit`` (window checksum), ``snapshot``."""
    bytes: dict[str, int] = {}
    """Bytes moved by kind: ``early``, ``late``, ``ordered``, ``store``, ``state``."""
    waits: dict[str, tuple[int, int, int]] = {}
    """Synchronize calls by call site: (made, elided, made though redundant)."""
    counters: dict[str, int] = {}
    """API calls by name, drafted/accepted tokens, graph launches ..."""
    telemetry: dict[str, Any] = {}
    """Plan, ring, declines, stops of the look-ahead (T21); small, JSON-able."""
    memory: dict[str, int] = {}
    """Peak and ring bytes on the device, bytes of the host arena."""
    sequences: int = 1
