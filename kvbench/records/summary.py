"""summary.json, version 1: everything a report needs, derived from the journal alone.

Speeds are tokens/s. Ratios are arm / baseline: 1.05 means the arm is 5% faster. ``d`` and
``half_width`` are natural logarithms.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

SUMMARY_VERSION = 1


class Verdict(enum.StrEnum):
    """METHODOLOGY.md, in the order in which the first that holds is taken."""

    INVALID = "INVALID"
    EQUIVALENT = "EQUIVALENT"
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    INCONCLUSIVE = "INCONCLUSIVE"


class Warn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A doubt about a result. ``code`` is stable, ``message`` is one line for people."""

    code: str
    message: str


class Assumption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named statistical assumption, whether it was checked on these data and what came out."""

    name: str
    statement: str
    holds: bool | None
    """None: not checkable with these data."""
    evidence: str = ""


class RunValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One run, in run order; counted or not, it is never left out."""

    order: int
    """Place in the whole experiment, from 0."""
    block: int
    attempt: int
    position: int
    pass_: int = msgspec.field(name="pass")
    arm: str
    started: float
    tok_s: float | None = None
    failure: str | None = None
    counted: bool = True
    """False for runs of a voided block."""
    outlier: bool = False
    """More than 3.5 scaled MADs from its arm's median; flagged, never dropped (M5)."""
    violations: tuple[str, ...] = ()
    telemetry: dict[str, float] = {}


class ArmSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One arm in one cell, over its counted runs."""

    name: str
    engine: str
    settings: dict[str, Any]
    runs: int
    failures: int
    tok_s: float | None = None
    """Geometric mean over runs."""
    tok_s_passes: tuple[float | None, float | None] = (None, None)
    """The same over the runs of each pass."""
    tokens: int | None = None
    """Generated tokens of one run; None if runs differ (then the cell is INVALID)."""
    ms_per_token: float | None = None
    spread: float | None = None
    """Standard deviation of log tokens/s between runs."""
    hashes: dict[str, tuple[str, ...]] = {}
    """Distinct digests seen, by kind: one each when the arm is deterministic."""
    bytes: dict[str, int] = {}
    """Bytes moved by kind in one run (equal in all runs, else the cell is INVALID)."""
    waits: dict[str, tuple[int, int, int]] = {}
    """By site: made, elided, redundant; medians over runs."""
    counters: dict[str, float] = {}
    """Medians over runs."""
    memory: dict[str, int] = {}
    """Maxima over runs, bytes."""
    metrics: dict[str, float] = {}
    """Medians over runs."""
    plan: dict[str, Any] = {}
    """The engine's own telemetry of the last run: plan, ring, declines (T21)."""
    telemetry: dict[str, float] = {}
    """Means over runs of what the machine did."""
    receipt: dict[str, Any] = {}
    """What exactly ran, as of its first run: command, version, revision, digests."""


class Diagnostics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """M6: what to print beside an estimate. Logs, except where named otherwise."""

    drift_per_block: float | None = None
    """Slope of the cell's mean log speed over blocks."""
    order_term: float | None = None
    """How much faster the run in second place is than the one before it, arm effect removed."""
    lag1: float | None = None
    """Lag-1 correlation of d_k."""
    aa_floor: float | None = None
    """Stored A/A floor of this machine, or None if it was never calibrated."""
    smallest_effect: float | None = None
    """Smallest true effect that this n would have found in 80% of experiments, log."""
    needed_blocks: int | None = None
    """n that would be needed, for INCONCLUSIVE."""


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One arm against the baseline in one cell."""

    arm: str
    baseline: str
    verdict: Verdict
    reason: str
    """One sentence: which rule of METHODOLOGY.md decided, with its figures."""
    ratio: float | None = None
    ci95: tuple[float, float] | None = None
    """Ratios; unadjusted for the number of cells (M5)."""
    ci90: tuple[float, float] | None = None
    blocks: tuple[int, ...] = ()
    """Numbers of the blocks behind ``d``."""
    d: tuple[float, ...] = ()
    """M4: per block mean log B - mean log A (or per pair, see ``method``)."""
    method: str = ""
    """``blocks``, ``pairs with order term``, either with ``, pooled A/A variance``."""
    df: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    """After Holm's correction over the suite's cells."""
    diagnostics: Diagnostics = Diagnostics()
    assumptions: tuple[Assumption, ...] = ()
    warnings: tuple[Warn, ...] = ()
    saved_ms_per_token: float | None = None


class GateOutcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """``outcome`` as in GateLine."""

    outcome: str
    message: str
    seconds: float = 0.0
    report: dict[str, Any] = {}


class CellSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One cell of the grid."""

    name: str
    axes: dict[str, Any]
    workload: dict[str, Any]
    gate: GateOutcome
    arms: tuple[ArmSummary, ...]
    comparisons: tuple[Comparison, ...]
    runs: tuple[RunValue, ...]
    link: dict[str, Any] = {}
    """``bytes_per_s``, ``source`` (stated | calibrated), ``ratio``; empty: link not slowed."""
    warnings: tuple[Warn, ...] = ()


class Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One experiment."""

    v: int
    run: str
    suite: str
    description: str
    started: float
    finished: float | None
    """None: not complete (interrupted; ``--resume`` goes on)."""
    kvbench: str
    baseline: str
    delta: float
    blocks: int
    looks: tuple[int, ...]
    labels: tuple[str, ...]
    """What a report must say first: NOT CHECKED, ATTACHED, LINK SLOWED TO ..."""
    command: tuple[str, ...]
    environment: dict[str, Any]
    environment_hash: str
    cells: tuple[CellSummary, ...]
    exit_code: int
    requirement: str | None = None
    requirement_met: bool | None = None
    warnings: tuple[Warn, ...] = ()
    notes: tuple[str, ...] = ()
    """From NoteLines: resumes, dropped torn lines, calibrations."""


def encode_summary(summary: Summary) -> bytes:
    """Indented JSON with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"


def decode_summary(data: bytes) -> Summary:
    """Read summary.json. Raises ``msgspec.DecodeError`` for anything else."""
    return msgspec.json.decode(data, type=Summary)
