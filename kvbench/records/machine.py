"""A machine profile: what ``kvbench doctor --profile`` measured and ``kvbench predict`` reads."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kvbench.errors import UsageError
from kvbench.paths import refuse_device

PROFILE_VERSION = 1
PROFILE_KIND = "machine-profile"

Seconds = Annotated[float, Meta(ge=0, le=3600)]
Count = Annotated[int, Meta(ge=1)]


class CopyTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One size of copy; ``seconds`` is its share of a row of such copies."""

    bytes: Count
    seconds: Annotated[float, Meta(gt=0, le=3600)]


class ComputeTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One decoded token behind ``rows`` of history that lie on the device."""

    rows: Count
    token_s: Seconds
    layer_s: Seconds
    """What is not outside the layers, per layer, averaged over all kinds of layer."""


class MachineProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Times are seconds, medians. Copies are between pinned host memory and the device."""

    v: int
    kind: Literal["machine-profile"]
    kvbench: str
    made: str
    """UTC."""
    machine: str
    """Salted id."""
    device: Literal["cpu", "cuda"]
    device_name: str
    link: Annotated[tuple[CopyTime, ...], Meta(min_length=2)]
    """Host to device, sizes ascending."""
    store: Annotated[tuple[CopyTime, ...], Meta(min_length=2)]
    """Device to host."""
    link_bytes_per_s: Annotated[float, Meta(gt=0)]
    """Of the largest copy."""
    link_latency_s: Seconds
    """What a copy of no bytes would take, by the two smallest sizes."""
    wait_s: Seconds
    """The host's, for waiting for a queue that is empty."""
    issue_s: Seconds
    """The host's, for issuing one operation."""
    model: str
    kv_type: str
    weight_type: str
    layers: Count
    outside_s: Seconds
    """Of a token: embedding, head and sampling; does not depend on the rows."""
    compute: Annotated[tuple[ComputeTime, ...], Meta(min_length=1)]
    """By rows, ascending."""
    seconds: Seconds
    """How long all of it took."""

    def __post_init__(self) -> None:
        for name, sizes in (
            ("link", [c.bytes for c in self.link]),
            ("store", [c.bytes for c in self.store]),
            ("compute", [c.rows for c in self.compute]),
        ):
            if any(b <= a for a, b in pairwise(sizes)):
                raise ValueError(f"{name}: sizes must ascend, they are {sizes}")

    def compute_at(self, rows: int) -> tuple[float, float]:
        """(seconds in all layers, seconds outside) of a token behind ``rows``.

        On straight lines between what was measured, and on the last one's beyond.
        """
        points = self.compute
        if len(points) == 1:
            return self.layers * points[0].layer_s, self.outside_s
        after = next((i for i, p in enumerate(points) if p.rows >= rows), len(points) - 1)
        one, two = points[max(after, 1) - 1], points[max(after, 1)]
        share = (rows - one.rows) / (two.rows - one.rows)
        layer = one.layer_s + share * (two.layer_s - one.layer_s)
        return self.layers * max(layer, 0.0), self.outside_s


def encode_profile(profile: MachineProfile) -> bytes:
    """Indented JSON with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n"


def read_profile(path: Path) -> MachineProfile:
    """Read a profile. Raises UsageError, one line, with the file, the place and what is allowed."""
    refuse_device(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot read the machine profile: {error.strerror}") from None
    try:
        head = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path}: no machine profile: not JSON ({error})") from None
    if not isinstance(head, dict) or head.get("kind") != PROFILE_KIND:
        raise UsageError(
            f'{path}: no machine profile: "kind" is not "{PROFILE_KIND}"; '
            "kvbench doctor --profile FILE writes one"
        )
    if head.get("v") != PROFILE_VERSION:
        raise UsageError(
            f"{path}: version {head.get('v')!r}; this kvbench reads version {PROFILE_VERSION}"
        )
    try:
        return msgspec.convert(head, MachineProfile)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: damaged machine profile: {error}") from None
