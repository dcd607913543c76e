"""Journal line, version 1: one self-contained JSON object a line, with its own checksum.

A line is ``{...fields..., "sum": "<16 hex digits>"}``: plain JSON for any reader, and the digest
covers every byte before it. Docs: docs/FORMAT.md.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from kvbench.records.migrate import UnknownVersionError, migrate
from kvbench.records.result import Failure, Result

SCHEMA_VERSION = 1
MAX_LINE_BYTES = 2048
_SUM_KEY = b',"sum":"'
_SUM_BYTES = len(_SUM_KEY) + 16 + len(b'"}')


class DamagedLineError(ValueError):
    """A journal line whose bytes are not what was written."""


class RunLine(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="run",
):
    """One run of one arm, finished or failed."""

    v: int
    run: str
    """Id of the experiment, which is the name of its directory under results/."""
    cell: str
    block: int
    """Block number within the cell, from 0."""
    attempt: int
    """0, or how often this block had to be started again."""
    position: int
    """Place inside the block, from 0: ABBA is positions 0, 1, 2, 3."""
    pass_: int = msgspec.field(name="pass")
    """0 for the block's first half, 1 for the reversed half."""
    arm: str
    started: float
    """Unix seconds, for people; durations never come from it."""
    wall_s: float
    """Seconds from the start of the process to its end, by the harness's monotonic clock."""
    environment: str
    """Hash of the fingerprint, stored once as environments/<hash>.json."""
    result: Result | None = None
    failure: Failure | None = None
    telemetry: dict[str, float] = {}
    """What the machine did during the run: see kvbench.environment.telemetry."""
    violations: tuple[str, ...] = ()
    """Why this run breaks the comparison (METHODOLOGY.md: throttling, other load)."""
    details: str | None = None
    """Hash of details/<hash>.json with those fields of the result that did not fit the line."""
    worker: str | None = None
    """Worker that ran the block, when a cluster did."""

    def __post_init__(self) -> None:
        if (self.result is None) == (self.failure is None):
            raise ValueError("a run has either a result or a failure")


class VoidLine(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="void",
):
    """A whole block's attempt does not count; its runs stay in the journal and in the report."""

    v: int
    run: str
    cell: str
    block: int
    attempt: int
    reason: str
    """``interrupted``, ``telemetry: ...``, ``worker lost`` or ``environment changed: ...``."""
    at: float


class GateLine(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="gate",
):
    """The exactness gate of one cell, before any of its runs is timed."""

    v: int
    run: str
    cell: str
    outcome: str
    """``passed``, ``mismatch``, ``ungateable``, ``failed`` (an arm crashed) or ``not checked``."""
    message: str
    at: float
    seconds: float
    environment: str
    arms: tuple[str, ...] = ()
    report: str | None = None
    """Hash of details/<hash>.json with the full gate report."""


class NoteLine(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag="note",
):
    """What a reader of the evidence must know: a resume, a dropped torn line, a calibration."""

    v: int
    run: str
    what: str
    message: str
    at: float
    data: dict[str, Any] = {}


Line = RunLine | VoidLine | GateLine | NoteLine

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


def encode_line(line: Line) -> bytes:
    """The line's bytes without the newline. Raises ``ValueError`` above ``MAX_LINE_BYTES``."""
    body = _encoder.encode(line)[:-1]
    data = body + _SUM_KEY + _digest(body) + b'"}'
    if len(data) >= MAX_LINE_BYTES:
        raise ValueError(f"a journal line of {len(data)} bytes exceeds {MAX_LINE_BYTES}")
    return data


def decode_line(data: bytes) -> Line:
    """Read one line without its newline; ``DamagedLineError`` also for an unknown version."""
    body, tail = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    if tail != _SUM_KEY + _digest(body) + b'"}':
        raise DamagedLineError("checksum does not match")
    try:
        line = _decoder.decode(body + b"}")
    except msgspec.DecodeError as error:
        return _migrated(body + b"}", str(error))
    return line if line.v == SCHEMA_VERSION else _migrated(body + b"}", "")


def _migrated(data: bytes, damage: str) -> Line:
    """A line of an older version; ``damage`` is what is wrong with it if it is of this one."""
    try:
        plain = msgspec.json.decode(data, type=dict[str, Any])
        if plain.get("v") == SCHEMA_VERSION:
            raise DamagedLineError(damage)
        line: Line = msgspec.convert(migrate(plain, SCHEMA_VERSION), Line)
    except (msgspec.DecodeError, UnknownVersionError) as reason:
        raise DamagedLineError(str(reason)) from reason
    return line


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).hexdigest().encode()
