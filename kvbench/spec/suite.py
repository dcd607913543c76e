"""The suite schema, version 1: what a TOML suite may say. Pure data; docs/FORMAT.md shows it.

Types and ranges of single keys are declared here; rules that join keys are in ``check.py``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

SUITE_VERSION = 1
CONVERSATIONS = "conversations"
"""The kind of workload whose prompts go on turn by turn."""

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=30 * 24 * 3600)]
GateMode = Literal["exact", "none", "tolerance"]


class ArmSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One arm: an engine and its settings. The engine validates ``settings`` (never silently)."""

    name: Name
    engine: Name
    settings: dict[str, Any] = {}
    command: tuple[str, ...] = ()
    """Program and arguments, for engine = "program" only; it speaks the arm protocol itself."""
    cwd: str | None = None
    """Working directory of the arm's process; default: the harness's."""
    env: dict[str, str] = {}
    """Further environment variables of the arm's process; ``"$NAME"`` passes the harness's own on.

    A secret can be given in that way only: the suite is stored with the results.
    """
    affinity: tuple[int, ...] | None = None
    """CPU numbers of this arm's process; default: the suite's."""


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What each run decodes."""

    kind: Name = "prose"
    """prose | code | json | dialogue | file | conversations; others are refused when planned."""
    path: str | None = None
    """A user's text or JSONL, for kind = "file"; JSONL or parquet for "conversations"."""
    prompt_tokens: Positive = 1024
    """Length of each prompt; the most that a turn may have, for "conversations"."""
    generate: Positive = 48
    """Tokens per sequence that are timed; the most that an answer may have."""
    warmup: Annotated[int, Meta(ge=0)] = 4
    """Tokens per sequence that each run decodes first and discards (M2)."""
    sequences: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Prompts decoded in parallel; conversations are had one after another."""
    seed: Annotated[int, Meta(ge=0)] = 1
    history: Literal["text", "seeded"] = "text"
    """seeded: the KV history is filled with seeded values instead of a prefilled prompt."""


class LinkSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Slow the cpu device's link: either to a bandwidth, or so that copy : compute is ``ratio``."""

    gb_s: Annotated[float, Meta(ge=1e-6, le=1e4)] | None = None
    """10^9 bytes a second."""
    ratio: Annotated[float, Meta(ge=0.001, le=1000)] | None = None
    """Calibrated once before the first block, stored in the plan, used by every run."""


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Seconds after which a part counts as hung."""

    run_s: Seconds = 120.0
    """One run, from the process's start to its exit."""
    gate_s: Seconds = 600.0
    """The gate of one cell."""
    sweep_s: Seconds = 24 * 3600.0
    """The whole suite; the run in flight is ended and the rest can be resumed."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Beyond these a run is not comparable (METHODOLOGY.md, INVALID)."""

    other_cores: Annotated[float, Meta(ge=0)] | None = None
    """Cores' worth of CPU used by other processes; default: 0.5, or a tenth of all if more."""
    steal: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """Share of the CPU time that the hypervisor gave to someone else."""
    repeats: Annotated[int, Meta(ge=0, le=10)] = 1
    """How often a block that broke a limit is run again before the cell is INVALID."""


class Tolerance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """For gate = "tolerance": exactly one limit per position; every report names it."""

    logits: Annotated[float, Meta(gt=0)] | None = None
    """Largest absolute difference of a logit (or log probability) that both arms name."""
    kl: Annotated[float, Meta(gt=0)] | None = None
    """Largest KL divergence, baseline to arm, in nats, over the candidates the arms list."""


class Suite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One experiment: arms x cells x blocks."""

    schema: int
    name: Name
    baseline: Name
    arms: Annotated[tuple[ArmSpec, ...], Meta(min_length=2, max_length=16)]
    description: str = ""
    gate: GateMode = "exact"
    tolerance: Tolerance | None = None
    process: Literal["spawn", "attached"] = "spawn"
    delta: Annotated[float, Meta(gt=0, le=0.5)] = 0.01
    blocks: Annotated[int, Meta(ge=1, le=10000)] | None = None
    """Fixed in advance and even; 6 unless looks are declared."""
    looks: tuple[Positive, ...] = ()
    """Declared interim looks (M3): block counts, each judged at alpha divided by their number."""
    workload: Workload = Workload()
    model: Annotated[str, Meta(min_length=1)] = "smollm2"
    """An asset's name, a GGUF path or ``synthetic:PRESET``; ``none``: the arms know theirs."""
    link: LinkSpec | None = None
    timeouts: Timeouts = Timeouts()
    environment: Limits = Limits()
    affinity: tuple[Annotated[int, Meta(ge=0)], ...] | None = None
    """CPU numbers of every arm's process."""
    grid: dict[str, list[Any]] = {}
    """Axis -> values; axes are named in ``cells.py``."""
    exclude: tuple[dict[str, Any], ...] = ()
    """Cells to leave out: every named axis has the named value (or one of a list of values)."""
    bytes_may_differ: bool = False
    """Declares that arms move different bytes (e.g. device-resident against host-resident)."""

    @property
    def total_blocks(self) -> int:
        """Blocks of each cell when no look stops it early."""
        if self.looks:
            return self.looks[-1]
        return 6 if self.blocks is None else self.blocks

    def arm(self, name: str) -> ArmSpec:
        """The arm called ``name`` (``KeyError`` if there is none)."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(name)
