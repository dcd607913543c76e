"""From settings to devices: the one place that knows which executors exist."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from typing import Any

from kvbench.decoder.config import ModelConfig
from kvbench.decoder.settings import DecoderSettings, WeightName
from kvbench.device.api import Device
from kvbench.device.context import Context
from kvbench.device.cpu.charge import WaitCharge
from kvbench.device.cpu.explorer import ExplorerDevice, Picker, Schedule
from kvbench.device.cpu.link import Link
from kvbench.device.cpu.threads import ThreadDevice
from kvbench.device.failed_designs import CONTEXTS
from kvbench.device.hooks import Hooks
from kvbench.device.kernels import Kernels, Shapes
from kvbench.device.kvtypes import KVType
from kvbench.device.oplog import OpLog
from kvbench.errors import UsageError


def open_devices(
    settings: DecoderSettings,
    *,
    log: OpLog | None,
    hooks: Hooks,
    picker: Picker | None = None,
    capacity: int | None = None,
    name: str = "",
    beside: Device | None = None,
) -> list[Device]:
    """The devices that ``settings`` asks for; ``capacity`` bounds each one's memory in bytes.

    ``name``: theirs, if it is not to be the kind's. ``beside``: a device of another engine, with
    which the explorer's devices share one order of work.
    """
    common: dict[str, Any] = {
        "log": log,
        "hooks": hooks,
        "capacity": capacity,
        "poison": settings.poison,
    }
    if picker is not None and settings.device != "cpu":
        raise UsageError(f"device = {settings.device!r}: the explorer orders the cpu device's work")
    if settings.explore >= 0 or picker is not None:
        if isinstance(beside, ExplorerDevice):
            schedule = beside.schedule
        else:
            schedule = Schedule(picker or Picker(settings.explore))
        return [
            ExplorerDevice(
                f"{name or 'cpu'}{i}", schedule=schedule, context=_context(settings), **common
            )
            for i in range(settings.devices)
        ]
    if settings.device == "cuda":
        cuda = importlib.import_module("kvbench.device.cuda")
        return [
            cuda.open_cuda(i, name, context=_context(settings, cuda.native()), **common)
            for i in range(settings.devices)
        ]
    share = 1.0 if settings.pinned else settings.pageable_share
    bandwidth = settings.link_gb_s * 1e9 * share or None
    return [
        ThreadDevice(
            f"{name or 'cpu'}{i}",
            link=Link(bandwidth, settings.link_latency_us * 1e-6),
            charge=WaitCharge(settings.wait_cost_us * 1e-6),
            context=_context(settings),
            **common,
        )
        for i in range(settings.devices)
    ]


def open_kernels(
    device: Device,
    config: ModelConfig,
    weights: Mapping[str, Any],
    codec: KVType,
    *,
    full_rows: int,
    audit: bool,
    weight_type: WeightName = "f32",
    layers: Collection[int] = (),
) -> Kernels:
    """The kernel set of ``device``; on CUDA with weights of its own, of ``layers`` only."""
    if device.kind == "cuda":
        if config.qkv_bias or config.qk_norm:
            raise UsageError(f"model {config.name}: biases and q/k norms run on device = cpu only")
        from kvbench.decoder.device_weights import device_weights
        from kvbench.device.cuda.device import CudaDevice
        from kvbench.device.cuda.kernel_set import CudaKernels

        assert isinstance(device, CudaDevice)
        held = device_weights(config, weights, device, weight_type, layers)
        return CudaKernels(device, shapes_of(config), held, codec, full_rows=full_rows, audit=audit)
    from kvbench.device.cpu.kernels import CpuKernels

    return CpuKernels(device, shapes_of(config), weights, codec, full_rows=full_rows, audit=audit)


def shapes_of(config: ModelConfig) -> Shapes:
    """What kernels need of a configuration."""
    return Shapes(
        d_model=config.d_model,
        n_heads=config.n_heads,
        n_kv_heads=config.n_kv_heads,
        head_dim=config.head_dim,
        d_ff=config.d_ff,
        vocab=config.vocab_size,
        context=config.context,
        rms_eps=config.rms_eps,
        rope_theta=config.rope_theta,
        rope_interleaved=config.rope_interleaved,
        rope_dim=config.rope_dim,
        rope_factors=config.rope_factors,
    )


def _context(settings: DecoderSettings, native: bool = True) -> Context:
    """``native``: elision is proved here. The cpu device has its proof in the tests (S4)."""
    return CONTEXTS[settings.mark](
        mode=settings.waits,
        native=native,
        logical_devices=settings.devices,
        debug=settings.check_leases,
    )
