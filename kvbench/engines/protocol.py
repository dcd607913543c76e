"""The arm protocol, version 1: JSON lines over an arm's stdin and stdout (docs/PROTOCOL.md).

    harness  hello  prepare        run                    bye
    arm      hello  ready          progress* result       bye
                    or failure     or failure

Each line is one JSON object with a ``type``. Unknown fields are refused on both sides: a
misspelt optional field must not pass for an absent one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvbench.records import Result

PROTOCOL = 1
"""The only version spoken; an arm that answers with another one is refused."""

Top2 = tuple[int, float, int, float]
"""Best token id, its logit (or log probability), second-best id, its logit."""


class _Message(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="type",
    kw_only=True,
):
    """Base of every line of the protocol."""


# ---- from the harness to the arm ---------------------------------------------------------------


class HarnessHello(_Message, frozen=True, tag="hello"):
    """The first line an arm reads."""

    protocol: int
    harness: str
    """Program and version, for the arm's own log."""


class Prepare(_Message, frozen=True, tag="prepare"):
    """Get ready: load the model, start the server. Answered by ``ready`` or ``failure``."""

    model: str = ""
    """Path, asset name or model id; empty where the arm knows its own."""
    settings: dict[str, Any] = {}
    """The arm's settings from the suite. A setting that the arm does not know is a failure."""


class Task(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """What to decode. One prompt per sequence; all sequences run concurrently."""

    prompts: list[list[int] | str]
    """Token ids, or text where the arm tokenizes itself."""
    generate: int
    """Tokens to generate per sequence, the end of text notwithstanding."""
    warmup: int = 0
    """Tokens decoded and discarded before the clock starts."""
    teacher: list[list[int]] | None = None
    """Force these tokens (one list of ``generate`` ids per sequence) instead of the arm's own."""
    detail: bool = False
    """Return ``tokens`` and, where the arm can, ``top2`` (a gate asks for it, a timed run not)."""
    name: str = ""
    """Which task of a gate or suite this is, for messages."""
    options: dict[str, Any] = {}
    """Settings of this task that only some arms know (``nonce``, ``rate`` ...)."""


class Run(_Message, frozen=True, tag="run"):
    """Run one task. Answered by any number of ``progress`` and one ``result`` or ``failure``."""

    id: int
    task: Task


class Bye(_Message, frozen=True, tag="bye"):
    """From the harness: stop, release everything, exit. From the arm: done."""


ToArm = HarnessHello | Prepare | Run | Bye

# ---- from the arm to the harness ---------------------------------------------------------------


class ArmHello(_Message, frozen=True, tag="hello"):
    """Who the arm is. Without a version there is no measurement."""

    protocol: int
    name: str
    version: str
    """Receipt of what will run: release and revision, as the program itself reports it."""
    capabilities: list[str] = []
    """Of ``tokens top2 teacher logits-hash bytes text parallel progress audit logprobs``."""
    receipt: dict[str, str] = {}
    """More of the same, by name: build, commit, library versions, digest of the binary."""


class Ready(_Message, frozen=True, tag="ready"):
    """Prepared. ``effective`` is what the program says it runs with, to compare with the asking."""

    effective: dict[str, Any] = {}
    receipt: dict[str, str] = {}
    """Parts of the version receipt that are known only now (a server's ``build_info``)."""
    version: str = ""
    """Replaces the hello's version where only the running program knows it."""
    notes: list[str] = []
    """Lines for people: what was declined or is unusual about this preparation."""


class Progress(_Message, frozen=True, tag="progress"):
    """A sign of life. ``done`` of ``total`` (0 = unknown) in units of the arm's choice."""

    done: float = 0
    total: float = 0
    note: str = ""


class Reply(_Message, frozen=True, tag="result"):
    """One task's outcome. ``result`` is measured; the rest lets a gate name a divergence."""

    id: int
    result: Result
    tokens: list[list[int]] | None = None
    """Generated ids, per sequence, in order."""
    pieces: list[list[str]] | None = None
    """Text of each generated token, for engines that do not give ids."""
    top2: list[list[Top2 | None]] | None = None
    """Per sequence and position, the two best candidates; null where unavailable."""
    texts: list[str] | None = None
    """Generated text per sequence, where the arm gives text."""
    stops: list[str] | None = None
    """Why each sequence ended: ``length``, ``eos``, ``stop`` ..."""
    logprobs: list[list[dict[str, float]]] | None = None
    """Per sequence and position, log probability by token id (top n), for tolerance mode."""
    extra: dict[str, Any] = {}
    """Anything else the program reported; kept, never interpreted."""


class ArmFailed(_Message, frozen=True, tag="failure"):
    """The arm could not do what was asked. It may still do the next task."""

    kind: str
    """Stable short word: ``setting``, ``model``, ``memory``, ``reused-prompt`` ..."""
    message: str
    """One line for people."""


FromArm = ArmHello | Ready | Progress | Reply | ArmFailed | Bye

_to_arm = msgspec.json.Decoder(ToArm)
_from_arm = msgspec.json.Decoder(FromArm)
_encoder = msgspec.json.Encoder()


def encode(message: ToArm | FromArm) -> bytes:
    """One line, newline included."""
    return _encoder.encode(message) + b"\n"


def decode_to_arm(line: bytes) -> ToArm:
    """A line read by an arm. Raises ``msgspec.DecodeError`` (``ValidationError`` is one)."""
    return _to_arm.decode(line)


def decode_from_arm(line: bytes) -> FromArm:
    """A line read by the harness. Raises ``msgspec.DecodeError``."""
    return _from_arm.decode(line)
