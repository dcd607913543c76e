"""Every setting of the reference decoder: names, types, ranges. Unknown names are refused."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from kvbench.device.context import WaitMode
from kvbench.device.failed_designs import Design
from kvbench.errors import SettingError, UsageError
from kvbench.transport.settings import (
    DEFAULT_HEADROOM_MIB,
    Ablation,
    Boundary,
    Loop,
    Tail,
    TransportSettings,
    check,
    from_environment,
    from_source,
)

WeightName = Literal["f32", "f16", "q8_0", "q4_0"]
WEIGHT_BYTES: Mapping[str, float] = {"f32": 4, "f16": 2, "q8_0": 34 / 32, "q4_0": 18 / 32}
"""Bytes per weight, scales included."""

Delays = Literal["none", "slow_transfer", "slow_compute", "slow_store", "jitter"]


class DecoderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the reference decoder runs. The defaults are the same on every device."""

    depth: int = 0
    budget_mib: int = -1
    headroom_mib: int = DEFAULT_HEADROOM_MIB
    boundary: Boundary = "carry"
    tail: Tail = "device"
    loop: Loop = "async"
    ablate: tuple[Ablation, ...] = ()
    row_multiple: int = 64

    device: Literal["cpu", "cuda"] = "cpu"
    devices: int = 1
    """Devices over which the layers are split."""
    kv_type: Literal["f32", "f16", "q8_0", "q4_0"] = "f16"
    """f32 is for comparisons with a peer, on the cpu device alone."""
    weight_type: WeightName = "f32"
    """How a GPU keeps matrices; a synthetic model is drawn in float32 and then converted."""
    unified: bool = False
    pinned: bool = True
    resident: bool = False
    """All KV on the device: the transport-free arm."""
    direct: bool = False
    """Attention reads the host's rows where they are, through the link: no ring, no copy."""
    device_layers: int = 0
    """The first k attention layers keep their KV on the device (T19)."""
    offload_state: bool = False
    """Recurrent state lives on the host and is rewritten whole each token."""
    graphs: bool = False
    """Capture a token's graph and replay it, instead of issuing each operation."""
    waits: WaitMode = "quiet"
    wait_cost_us: float = 0.0
    """Charged per real synchronize (cpu device): a model of another machine's driver."""
    mark: Design = "queue"
    """Where the used mark is kept; all but ``queue`` are designs that failed (S6)."""
    check_leases: bool = False
    """Raise when a borrowed queue handle is kept across a synchronize (S2)."""
    lag: int = 2
    """How many tokens the host may run ahead of what it has read (waits = quiet)."""
    draft: str = "none"
    """Speculation: ``prompt`` (look the continuation up in the text), ``layers:K`` (the target's
    first K layers) or another model."""
    draft_length: int = 7
    """Tokens drafted at a time."""
    context: int = 0
    """Positions per sequence; 0: what the task needs."""

    link_gb_s: float = 0.0
    """Bandwidth of the cpu device's link, 10^9 bytes/s; 0: as fast as memory."""
    link_latency_us: float = 0.0
    pageable_share: float = 0.5
    """Bandwidth of unpinned memory as a share of the link's (cpu device)."""
    delays: Delays = "none"
    delay_ms: float = 3.0
    faults: tuple[str, ...] = ()
    audit: bool = False
    """Fold every byte that attention reads into a checksum (METHOD, Hash)."""
    poison: bool = False
    """Fresh memory holds NaN."""
    explore: int = -1
    """Seed of the schedule explorer; −1: real threads."""
    telemetry: int = 1
    """Level 1 to 3 (T21)."""
    graph_input_kib: int = 0
    """Size of an input that every graph copies to the device on its compute queue (T21): on a
    first-in-first-out link it queues behind deliveries."""
    record: bool = False
    """Keep the op log."""

    def __post_init__(self) -> None:
        self.transport()
        _range("devices", self.devices, 1, 8)
        _range("device_layers", self.device_layers, 0, 1024)
        _range("lag", self.lag, 1, 64)
        _range("context", self.context, 0, 1 << 24)
        _range("telemetry", self.telemetry, 1, 3)
        _range("graph_input_kib", self.graph_input_kib, 0, 1 << 20)
        _range("link_gb_s", self.link_gb_s, 0.0, 1e4)
        _range("link_latency_us", self.link_latency_us, 0.0, 1e6)
        _range("pageable_share", self.pageable_share, 0.01, 1.0)
        _range("draft_length", self.draft_length, 1, 15)
        _range("wait_cost_us", self.wait_cost_us, 0.0, 1e6)
        if self.weight_type != "f32" and self.device != "cuda":
            raise SettingError("weight_type", self.weight_type, "f32 on the cpu device")
        if self.explore >= 0 and self.device != "cpu":
            raise SettingError("explore", self.explore, "the cpu device; a GPU orders its own work")
        if self.wait_cost_us and (self.device != "cpu" or self.explore >= 0):
            raise SettingError("wait_cost_us", self.wait_cost_us, "only on the threaded cpu device")
        _range("delay_ms", self.delay_ms, 0.0, 1e4)
        if self.graphs and (self.loop == "blocking" or "recycle_through_host" in self.ablate):
            raise SettingError("graphs", True, "not with a loop in which the host waits")
        if self.graphs and self.devices > 1:
            raise SettingError("graphs", True, "one device; layers split over several run eagerly")
        if self.kv_type == "f32" and self.device != "cpu":
            raise SettingError("kv_type", "f32", "f16, q8_0 or q4_0 on a GPU")
        if self.direct and (self.depth or self.resident or not self.pinned):
            raise SettingError("direct", True, "with depth 0, pinned memory and no resident KV")
        if self.resident and self.depth:
            raise SettingError("depth", self.depth, "0 where all KV is resident on the device")

    @property
    def speculates(self) -> bool:
        """Whether a draft guesses ahead."""
        return self.draft not in ("none", "")

    def transport(self) -> TransportSettings:
        """The transport's part."""
        return TransportSettings(**{name: getattr(self, name) for name in TRANSPORT})


TRANSPORT = tuple(f.name for f in dataclasses.fields(TransportSettings))
"""Settings that are the transport's own, with the same names, defaults and ranges."""


def parse(
    values: Mapping[str, Any],
    *,
    source: str = "argument",
    environ: Mapping[str, str] = os.environ,
) -> DecoderSettings:
    """Settings from ``source``; the environment fills in what is not given (T12).

    Raises UsageError naming the setting, its value, what would be allowed and where it came from.
    """
    merged = {**from_environment(environ), **values}
    with from_source(source):
        check({name: merged[name] for name in TRANSPORT if name in merged})
        try:
            return msgspec.convert(merged, DecoderSettings)
        except msgspec.ValidationError as error:
            raise _refusal(error, merged) from None


def _refusal(error: msgspec.ValidationError, values: Mapping[str, Any]) -> UsageError:
    """What msgspec found, in the words of a setting that is refused."""
    if isinstance(error.__cause__, UsageError):
        return error.__cause__
    unknown = next((n for n in values if n not in DecoderSettings.__struct_fields__), None)
    if unknown is not None:
        known = ", ".join(sorted(DecoderSettings.__struct_fields__))
        return SettingError(
            unknown, values[unknown], f"unknown field `{unknown}`; known settings: {known}"
        )
    what, _, path = str(error).partition(" - at `$.")
    name = path.rstrip("`").partition("[")[0]
    hint = get_type_hints(DecoderSettings).get(name)
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    return SettingError(
        name, values.get(name), "one of " + ", ".join(choices) if choices else what.lower()
    )


def _range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise SettingError(name, value, f"from {low} to {high}")
