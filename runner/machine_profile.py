"""Measuring a machine for ``kvbench predict``: its link, its host's calls, a model's compute."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

import kvbench
from kvbench.decoder.config import ModelConfig
from kvbench.decoder.devices import open_devices
from kvbench.decoder.draft import shallow
from kvbench.decoder.engine import Engine
from kvbench.decoder.model import Model, open_model
from kvbench.decoder.readback import StepOutput
from kvbench.decoder.seeded import SeededHistory, fill
from kvbench.decoder.settings import DecoderSettings, WeightName
from kvbench.device.api import Device, Queue
from kvbench.device.hooks import Hooks
from kvbench.device.kvtypes import kv_type
from kvbench.device.memory import Buffer
from kvbench.environment.fingerprint import machine
from kvbench.environment.privacy import machine_id
from kvbench.errors import UsageError
from kvbench.records.machine import (
    PROFILE_VERSION,
    ComputeTime,
    CopyTime,
    MachineProfile,
    encode_profile,
)
from runner.experiment import Watcher

SIZES = tuple(1 << bits for bits in range(14, 27, 2))
"""Bytes: 16 KiB to 64 MiB."""
ROW_S = 0.02
"""Copies are timed in rows of about this many seconds."""
ROUNDS = 7
CALLS = 200
CONTEXTS: dict[str, tuple[int, ...]] = {"cpu": (512, 2048, 6144), "cuda": (4096, 16_384, 65_536)}
STEPS, WARMUP = 7, 3


@dataclass(frozen=True)
class Wanted:
    """What to measure."""

    device: Literal["cpu", "cuda"] = "cpu"
    model: str = "smollm2"
    kv_type: Literal["f16", "q8_0", "q4_0"] = "f16"


def wanted(given: Mapping[str, str]) -> Wanted:
    """From a command's options. Raises UsageError for a value that is not allowed."""
    try:
        return msgspec.convert(dict(given), Wanted)
    except msgspec.ValidationError as error:
        raise UsageError(f"machine profile: {error}") from None


def measure_to(
    path: Path, wanted: Wanted, watch: Callable[[str, int], AbstractContextManager[Watcher]]
) -> MachineProfile:
    """Measure, and write the profile. A place that cannot be written is refused first."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".profile-") as folder:
            found = measure(wanted, watch)
            staged = Path(folder) / path.name
            staged.write_bytes(encode_profile(found))
            staged.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot write the profile: {error.strerror}") from None
    return found


def measure(
    wanted: Wanted, watch: Callable[[str, int], AbstractContextManager[Watcher]]
) -> MachineProfile:
    """Measure everything; under two minutes on two cores. Raises UsageError for what cannot be."""
    started = time.monotonic()
    model = open_model(wanted.model)
    weights: WeightName = "f16" if wanted.device == "cuda" else "f32"
    settings = DecoderSettings(
        device=wanted.device,
        kv_type=wanted.kv_type,
        weight_type=weights,
        resident=True,
        graphs=wanted.device == "cuda",
    )
    contexts = _contexts(wanted, model.config)
    kv_type(wanted.kv_type, n_kv_heads=model.config.n_kv_heads, head_dim=model.config.head_dim)
    with watch("machine profile", 2 * len(SIZES) + 2 + len(contexts)) as watcher:
        link, store, wait_s, issue_s = _device_costs(settings, watcher)
        outside_s, compute = _compute(model, settings, contexts, watcher)
    return MachineProfile(
        v=PROFILE_VERSION,
        kind="machine-profile",
        kvbench=kvbench.__version__,
        made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        machine=machine_id(),
        device=wanted.device,
        device_name=_device_name(wanted.device),
        link=link,
        store=store,
        link_bytes_per_s=link[-1].bytes / link[-1].seconds,
        link_latency_s=_latency(link),
        wait_s=wait_s,
        issue_s=issue_s,
        model=wanted.model,
        kv_type=wanted.kv_type,
        weight_type=weights,
        layers=model.config.n_layers,
        outside_s=outside_s,
        compute=tuple(compute),
        seconds=time.monotonic() - started,
    )


def _contexts(wanted: Wanted, config: ModelConfig) -> list[int]:
    room = config.context - WARMUP - STEPS - 1
    if room < 1:
        raise UsageError(f"model {wanted.model}: a context of {config.context} holds no history")
    return [rows for rows in CONTEXTS[wanted.device] if rows <= room] or [room]


def _latency(copies: Sequence[CopyTime]) -> float:
    one, two = copies[0], copies[1]
    per_byte = (two.seconds - one.seconds) / (two.bytes - one.bytes)
    return max(one.seconds - max(per_byte, 0.0) * one.bytes, 0.0)


def _device_name(device: str) -> str:
    facts = machine()
    if device == "cuda" and facts["gpus"]:
        return str(facts["gpus"][0]["name"])
    return str(facts["cpu"] or platform.machine()) if device == "cpu" else "CUDA device"


# ------------------------------------------------------------------ link and host
def _device_costs(
    settings: DecoderSettings, watcher: Watcher
) -> tuple[tuple[CopyTime, ...], tuple[CopyTime, ...], float, float]:
    """Copies up and down by size, seconds of a wait, seconds of issuing one operation."""
    every_wait = DecoderSettings(device=settings.device, waits="stock")
    (device,) = open_devices(every_wait, log=None, hooks=Hooks())
    with device:
        queue = device.queue("profile")
        host = device.alloc("profile host", SIZES[-1], "host")
        there = device.alloc("profile device", SIZES[-1])
        found: dict[str, list[CopyTime]] = {"to": [], "from": []}
        for name, (target, source) in {"to": (there, host), "from": (host, there)}.items():
            for size in SIZES:
                seconds = _copy(device, queue, target, source, size)
                found[name].append(CopyTime(size, seconds))
                rate = f"{size / seconds / 1e9:.2f} GB/s"
                watcher.step(f"copies of {size >> 10} KiB {name} the device: {rate}")
        wait_s, issue_s = _wait(device, queue), _issue(device, queue, there, host)
        watcher.step(f"a wait {wait_s * 1e6:.2f} us, issuing a call {issue_s * 1e6:.2f} us")
        for buffer in (host, there):
            device.free(buffer)
    return tuple(found["to"]), tuple(found["from"]), wait_s, issue_s


def _copy(device: Device, queue: Queue, target: Buffer, source: Buffer, size: int) -> float:
    """Seconds of one copy in a captured row of them, so that issuing them costs nothing."""
    count = 4
    while True:
        with device.capture(queue) as graph:
            for i in range(count):
                at = i * size % (SIZES[-1] - size + 1) // 16 * 16
                device.copy(queue, target.span(at, size), source.span(at, size), site="profile")
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            device.launch(graph)
            device.synchronize(queue, "profile")
            times.append(time.perf_counter() - start)
        device.drop_graph(graph)
        took = median(times[1:])
        if took >= ROW_S / 4 or count >= 1024:
            return took / count
        count = min(1024, max(2 * count, int(count * ROW_S / took)))


def _wait(device: Device, queue: Queue) -> float:
    """Median seconds of waiting for a queue that is empty."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        device.synchronize(queue, "profile")
        times.append(time.perf_counter() - start)
    return median(times)


def _issue(device: Device, queue: Queue, target: Buffer, source: Buffer) -> float:
    """Median seconds of the host for one small operation that is issued by itself."""
    times = []
    for _ in range(CALLS):
        start = time.perf_counter()
        device.copy(queue, target.span(0, 256), source.span(0, 256), site="profile")
        times.append(time.perf_counter() - start)
    device.synchronize(queue, "profile")
    return median(times)


# ------------------------------------------------------------------------ compute
def _compute(
    model: Model, settings: DecoderSettings, contexts: Sequence[int], watcher: Watcher
) -> tuple[float, list[ComputeTime]]:
    """Seconds outside the layers, and of tokens and layers by context.

    Outside: what is left when the layers' time is taken away, known from a copy of the model with
    half of them. The quickest steps are compared, since other work makes steps longer only.
    """
    layers = model.config.n_layers
    took: dict[int, list[float]] = {}
    for rows in contexts:
        took[rows] = _steps(model, settings, rows)
        watcher.step(f"a token behind {rows} rows: {median(took[rows]) * 1e3:.2f} ms")
    outside = 0.0
    if layers > 1:
        part = layers // 2
        half = min(_steps(shallow(model, part), settings, contexts[0]))
        whole = min(took[contexts[0]])
        outside = min(max(whole - layers * (whole - half) / (layers - part), 0.0), whole)
    watcher.step(f"head and sampling: {outside * 1e3:.2f} ms")
    found = []
    for rows, steps in took.items():
        token = median(steps)
        layer = max(token - outside, 0.0) / layers
        found.append(ComputeTime(rows, token, layer))
    return outside, found


def _steps(model: Model, settings: DecoderSettings, rows: int) -> list[float]:
    """Seconds of each token, all KV on the device."""
    stamps: list[float] = []

    def sink(_: StepOutput) -> None:
        stamps.append(time.perf_counter())

    with Engine(model, settings, 1, rows + WARMUP + STEPS + 1) as engine:
        fill(engine, SeededHistory(rows))
        engine.drain("start")
        engine.generate({0: 1}, WARMUP + STEPS + 1, sink)
    return [b - a for a, b in pairwise(stamps)][WARMUP:]
