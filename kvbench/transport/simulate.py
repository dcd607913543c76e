"""The transport on the virtual device: the same pipeline code, no bytes, thousands of tokens/s.

What a model is to the transport: so many attention layers, a row's bytes, and the compute between
one window and the next.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from kvbench.device.oplog import OpLog
from kvbench.device.ops import Op
from kvbench.device.virtual import SECONDS, Costs, VirtualDevice
from kvbench.errors import SettingError
from kvbench.records.capture import END, TOKEN
from kvbench.transport.pipeline import Next, Pipeline
from kvbench.transport.prefix import StablePrefix
from kvbench.transport.settings import TransportSettings
from kvbench.transport.window import Geometry, Storage

WARMUP = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """One sequence's model, as the transport sees it."""

    splits: int
    """Attention layers whose windows travel."""
    row_bytes: int
    """Allocated bytes of one token's K, and of its V, in one layer; a multiple of 16."""
    compute_s: float
    """Seconds of compute a step inside the split loop, copies excluded."""
    outside_s: float = 0.0
    """Seconds a step outside it: head, sampling."""
    resident: int = 0
    """Further attention layers whose KV stays on the device; their compute is in ``compute_s``."""
    read_share: float = 0.1
    """Share of a split's compute after which its window's slot is released; up to 0.9, where a
    split ends with what reads its window."""
    upload_bytes: int = 0
    """Bytes that each step sends to the device before it computes (tokens, masks)."""

    def __post_init__(self) -> None:
        if not 0 < self.read_share <= 0.9:
            raise SettingError("read_share", self.read_share, "above 0, at most 0.9")
        if self.splits < 0 or self.row_bytes < 16 or self.row_bytes % 16:
            raise SettingError(
                "shape", (self.splits, self.row_bytes), "splits ≥ 0 and rows of a multiple of 16"
            )

    def window_bytes(self, rows: int) -> int:
        """Bytes of all windows of a step over ``rows`` rows."""
        return 2 * self.splits * self.row_bytes * rows


@dataclass(frozen=True, slots=True)
class Simulated:
    """A run's steady state."""

    step_s: float
    bytes: dict[str, int] = field(default_factory=dict)
    ring_bytes: int = 0
    declines: dict[str, int] = field(default_factory=dict)
    ops: int = 0
    wall_s: float = 0.0
    """Real seconds that the simulation took."""

    @property
    def tok_s(self) -> float:
        """Tokens a second of one sequence."""
        return 1.0 / self.step_s


def simulate(
    shape: Shape,
    costs: Costs,
    settings: TransportSettings,
    rows: int,
    *,
    steps: int = 16,
    lag: int = 1,
    log: OpLog | None = None,
) -> Simulated:
    """``steps`` tokens behind a history of ``rows``; the mean step after a warm-up of four.

    ``lag``: how many tokens the host runs ahead of what it has read.
    """
    started = time.perf_counter()
    device = VirtualDevice(costs, log=log)
    compute = device.queue("compute")
    capacity = rows + WARMUP + steps + 1
    storages = [
        Storage(
            device.alloc(f"kv{i}", 2 * capacity * shape.row_bytes, "host"),
            1,
            capacity,
            shape.row_bytes,
        )
        for i in range(shape.splits)
    ]
    prefix = StablePrefix(1, shape.row_bytes)
    pipeline = Pipeline(device, compute, storages, prefix, settings)
    reads = [device.event(f"read{i}") for i in range(lag)]
    ends: list[float] = []
    for step in range(WARMUP + steps):
        if log is not None:
            log.mark(TOKEN, step=step)
        length = rows + step + 1
        prefix.refresh(0, length - 1)
        following = Next(Geometry((0,), length + 1), (length,))
        pipeline.prepare(Geometry((0,), length), following if step < WARMUP + steps - 1 else None)
        _step(device, pipeline, shape)
        device.record(compute, reads[step % lag])
        device.synchronize(reads[(step + 1) % lag], "read")
        ends.append(compute.native[0])
    if log is not None:
        log.mark(END)
    telemetry = pipeline.telemetry
    pipeline.close()
    return Simulated(
        step_s=(ends[-1] - ends[WARMUP - 1]) / steps,
        bytes=dict(telemetry.bytes),
        ring_bytes=telemetry.ring_bytes,
        declines=dict(telemetry.declines),
        ops=device.ops,
        wall_s=time.perf_counter() - started,
    )


def _step(device: VirtualDevice, pipeline: Pipeline, shape: Shape) -> None:
    """One token, in the order in which the decoder queues its work."""
    compute, settings = pipeline.compute, pipeline.settings
    pipeline.prime()
    if shape.upload_bytes:
        upload = {"direction": "host_to_device"}
        device.submit(
            compute, Op("copy", "upload", _nothing, nbytes=shape.upload_bytes, tags=upload)
        )
    if shape.splits == 0:
        _kernel(device, pipeline, "compute", shape.compute_s)
    part = shape.compute_s / max(shape.splits, 1)
    for split in range(shape.splits):
        _kernel(device, pipeline, "attn_in", part * 0.1)
        if settings.tail == "host":
            _store(device, pipeline, split, shape.row_bytes)
        with pipeline.window(split):
            reads = part * shape.read_share
            _kernel(device, pipeline, "attend", reads, split, pipeline.slot(split))
            if settings.tail == "device":
                _store(device, pipeline, split, shape.row_bytes)
        _kernel(device, pipeline, "mlp", part * (0.9 - shape.read_share))
    _kernel(device, pipeline, "head", shape.outside_s)
    pipeline.end()


def _store(device: VirtualDevice, pipeline: Pipeline, split: int, row_bytes: int) -> None:
    """The new rows go to the host."""
    tags = {"direction": "device_to_host"}
    op = Op("copy", "store", _nothing, site="store", split=split, nbytes=2 * row_bytes, tags=tags)
    device.submit(pipeline.compute, op)
    pipeline.stored(split)


def _kernel(
    device: VirtualDevice,
    pipeline: Pipeline,
    label: str,
    seconds: float,
    split: int = -1,
    slot: int = -1,
) -> None:
    op = Op("kernel", label, _nothing, site=label, split=split, slot=slot, tags={SECONDS: seconds})
    device.submit(pipeline.compute, op)


def _nothing(_: object) -> None:
    return
