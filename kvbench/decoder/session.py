"""One task on the reference decoder: from prompts and settings to tokens, hashes and a Result.

The same path serves timing and verification: a run that is timed is hashed too.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np

from kvbench.decoder import snapshot
from kvbench.decoder.engine import Engine
from kvbench.decoder.faults import DelayHooks, hooks_for
from kvbench.decoder.history import extract, insert
from kvbench.decoder.model import Model
from kvbench.decoder.readback import StepOutput
from kvbench.decoder.settings import DecoderSettings
from kvbench.device.cpu.explorer import Picker
from kvbench.device.oplog import OpLog
from kvbench.device.races import check
from kvbench.device.ranges import Measured
from kvbench.errors import UsageError
from kvbench.records import Result
from kvbench.records.capture import END

Top2 = tuple[int, float, int, float]


@dataclass(frozen=True, slots=True)
class DecodeTask:
    """What to decode: one prompt (token ids, at least one) per sequence, all in parallel."""

    prompts: Sequence[Sequence[int]]
    generate: int
    """Tokens per sequence that are judged."""
    warmup: int = 0
    """Tokens decoded before the clock starts; they are hashed like the others."""
    teacher: Sequence[Sequence[int]] | None = None
    """Tokens to force, ``warmup + generate`` per sequence, instead of the model's own."""
    detail: bool = False
    """Keep the top-2 of every position."""
    snapshots: bool = True
    """Start from kept prefills; False runs the prompt through the transport."""


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """What came of it. ``tokens`` includes the warm-up's."""

    tokens: list[list[int]]
    top2: list[list[Top2]]
    """By sequence and position: best id, its logit, second id, its logit; empty without detail."""
    sequence_hashes: list[str]
    """Hash of each sequence's logits, to compare with the same prompt run alone."""
    result: Result
    log: OpLog | None = None


@dataclass(slots=True)
class _Collector:
    """Hashes and keeps what each step yields, and when."""

    sequences: int
    detail: bool
    warmup: int
    tokens: list[list[int]] = field(init=False)
    top2: list[list[Top2]] = field(init=False)
    logits: list[Any] = field(init=False)
    audit: Any = field(init=False)
    times: list[float] = field(default_factory=list)
    measured: Measured = field(default_factory=Measured)

    def __post_init__(self) -> None:
        self.tokens = [[] for _ in range(self.sequences)]
        self.top2 = [[] for _ in range(self.sequences)]
        self.logits = [hashlib.blake2b(digest_size=16) for _ in range(self.sequences)]
        self.audit = hashlib.blake2b(digest_size=16)

    def __call__(self, step: StepOutput) -> None:
        self.times.append(time.perf_counter())
        if len(self.times) == self.warmup:
            self.measured.start()
        self.audit.update(step.sums.astype("<u8").tobytes())
        for sequence in range(self.sequences):
            row = step.logits[sequence]
            self.tokens[sequence].append(int(step.tokens[sequence]))
            self.logits[sequence].update(np.ascontiguousarray(row, "<f4"))
            if self.detail:
                second, first = np.argpartition(row, -2)[-2:]
                if row[second] > row[first]:
                    first, second = second, first
                self.top2[sequence].append(
                    (int(first), float(row[first]), int(second), float(row[second]))
                )


def run_task(
    model: Model,
    settings: DecoderSettings,
    task: DecodeTask,
    *,
    hooks: DelayHooks | None = None,
    picker: Picker | None = None,
    device_bytes: int | None = None,
) -> DecodeRun:
    """Decode ``task``. ``hooks`` replaces the faults and delays that the settings name."""
    _check(model, task)
    steps = task.warmup + task.generate
    longest = max(len(p) for p in task.prompts)
    capacity = settings.context or longest + steps
    log = OpLog() if settings.record else None
    hooks = hooks or hooks_for(settings)
    served = [task.prompts[hooks.history_of(i)][:-1] for i in range(len(task.prompts))]
    started = [_history(model, p, settings) if task.snapshots else None for p in served]
    engine = Engine(
        model,
        settings,
        len(task.prompts),
        capacity,
        hooks=hooks,
        log=log,
        picker=picker,
        device_bytes=device_bytes,
    )
    collect = _Collector(len(task.prompts), task.detail, task.warmup)
    with engine:
        for sequence, (prompt, kept) in enumerate(zip(task.prompts, started, strict=True)):
            if kept is None:
                engine.prefill(sequence, prompt[:-1])
            elif kept.positions:
                insert(engine, sequence, kept)
        engine.drain("start")
        before = _counts(engine)
        begin = time.perf_counter()
        teacher = None
        if task.teacher is not None:
            teacher = dict(enumerate(task.teacher))
        if task.warmup == 0:
            collect.measured.start()
        engine.generate(
            {s: p[-1] for s, p in enumerate(task.prompts)}, steps, collect, teacher=teacher
        )
        collect.measured.end()
        if log is not None:
            log.mark(END)
        after = _counts(engine)
        result = _result(engine, task, collect, started, begin, before, after)
    return DecodeRun(
        collect.tokens, collect.top2, [h.hexdigest() for h in collect.logits], result, log
    )


def _check(model: Model, task: DecodeTask) -> None:
    if task.generate < 1 or task.warmup < 0:
        raise UsageError(f"generate = {task.generate}, warmup = {task.warmup}: at least 1 and 0")
    vocabulary = model.config.vocab_size
    for i, prompt in enumerate(task.prompts):
        if not prompt:
            raise UsageError(f"prompt {i} is empty: at least one token is needed")
        bad = next((t for t in prompt if not 0 <= t < vocabulary), None)
        if bad is not None:
            raise UsageError(f"prompt {i}: token {bad} is outside the vocabulary of {vocabulary}")
    if task.teacher is not None:
        need = task.warmup + task.generate
        if len(task.teacher) != len(task.prompts) or any(len(t) < need for t in task.teacher):
            raise UsageError(f"teacher: {need} tokens are needed for each prompt")


def _history(model: Model, tokens: Sequence[int], settings: DecoderSettings) -> snapshot.Snapshot:
    """The prefill of ``tokens``: from the cache, or made now by a plain device-resident engine."""
    name = snapshot.key(model, tokens, settings)
    kept = snapshot.load(name)
    if kept is None:
        plain = DecoderSettings(device=settings.device, kv_type=settings.kv_type, resident=True)
        with Engine(model, plain, 1, max(len(tokens), 1)) as engine:
            begin = time.perf_counter()
            engine.prefill(0, tokens)
            engine.drain("prefill")
            kept = extract(engine, 0, prefill_s=time.perf_counter() - begin)
        snapshot.save(name, kept)
    return kept


def _counts(engine: Engine) -> dict[str, Counter[str]]:
    """Counters of all stages, to be subtracted around the decode loop."""
    calls: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    for stage in engine.stages:
        calls.update(stage.device.calls)
        moved.update(stage.pipeline.telemetry.bytes)
        for site, counts in stage.device.context.waits().items():
            for i, count in enumerate(counts):
                waits[f"{site}\0{i}"] += count
    return {"calls": calls, "bytes": moved, "waits": waits}


def _result(
    engine: Engine,
    task: DecodeTask,
    collect: _Collector,
    started: Sequence[snapshot.Snapshot | None],
    begin: float,
    before: dict[str, Counter[str]],
    after: dict[str, Counter[str]],
) -> Result:
    delta = {k: after[k] - before[k] for k in after}
    start = collect.times[task.warmup - 1] if task.warmup else begin
    seconds = collect.times[-1] - start
    sequences = len(task.prompts)
    steps = task.warmup + task.generate
    sites = sorted({s.split("\0")[0] for s in delta["waits"]})
    tokens = hashlib.blake2b(
        np.asarray(collect.tokens, "<i4").tobytes(), digest_size=16
    ).hexdigest()
    logits = hashlib.blake2b(
        "".join(h.hexdigest() for h in collect.logits).encode(), digest_size=16
    ).hexdigest()
    hashes = {"tokens": tokens, "logits": logits}
    if engine.settings.audit:
        hashes["audit"] = collect.audit.hexdigest()
    kept = [s for s in started if s is not None]
    if kept:
        hashes["snapshot"] = hashlib.blake2b(
            "".join(s.digest for s in kept).encode(), digest_size=16
        ).hexdigest()
    moved = {k: v for k, v in sorted(delta["bytes"].items()) if v}
    windows = sum(moved.get(k, 0) for k in ("early", "late", "ordered"))
    weights = sum(w.nbytes for n, w in _distinct(engine.model).items() if n != "embed")
    return Result(
        tokens=task.generate * sequences,
        decode_s=seconds,
        metrics={
            "step_ms": seconds / task.generate * 1e3,
            "window_gb_s": windows / steps * task.generate / seconds / 1e9,
            "weight_gb_s": weights * sequences * task.generate / seconds / 1e9,
            "window_mib_per_step": windows / steps / (1 << 20),
            **_prefill_speed(kept),
        },
        hashes=hashes,
        bytes=moved,
        waits={
            s: (
                delta["waits"][f"{s}\0{0}"],
                delta["waits"][f"{s}\0{1}"],
                delta["waits"][f"{s}\0{2}"],
            )
            for s in sites
        },
        counters={k: v for k, v in sorted(delta["calls"].items()) if v},
        telemetry={
            **{s.device.name: s.pipeline.telemetry.as_dict() for s in engine.stages},
            **_races(engine.log),
        },
        memory={
            "device_peak": sum(d.peak_bytes["device"] for d in engine.devices),
            "host_peak": sum(d.peak_bytes["host"] for d in engine.devices),
            "ring": sum(s.pipeline.telemetry.ring_bytes for s in engine.stages),
        },
        sequences=sequences,
    )


def _distinct(model: Model) -> dict[str, Any]:
    """Weights by name, with a tied head counted once (as the head, which is read whole)."""
    return {n: model.weights[n] for n in model.weights}


def _races(log: OpLog | None) -> dict[str, Any]:
    """The happens-before check of a recorded run, in words; nothing where nothing was recorded."""
    return {} if log is None else {"races": [r.describe() for r in check(log, limit=1)]}


def _prefill_speed(kept: Sequence[snapshot.Snapshot]) -> dict[str, float]:
    seconds = sum(s.prefill_s for s in kept)
    return {"prefill_tok_s": sum(s.positions for s in kept) / seconds} if seconds else {}


@dataclass(frozen=True, slots=True)
class Parts:
    """What a step costs apart from overlap: compute alone, and the bytes that must move."""

    compute_s: float
    """Median seconds of a step with all KV resident on the device."""
    window_bytes: int
    """Bytes of the windows that one step moves, averaged over the task."""

    def link_bytes_per_s(self, ratio: float) -> float:
        """The bandwidth at which the copy takes ``ratio`` times as long as the compute."""
        return self.window_bytes / (self.compute_s * ratio)


def measure_parts(model: Model, settings: DecoderSettings, task: DecodeTask) -> Parts:
    """Time the task without the transport, and count the bytes that the ordered path moves."""
    alone = msgspec.structs.replace(
        settings,
        resident=True,
        depth=0,
        link_gb_s=0.0,
        faults=(),
        delays="none",
    )
    ordered = msgspec.structs.replace(
        settings,
        resident=False,
        depth=0,
        link_gb_s=0.0,
        faults=(),
        delays="none",
    )
    compute = run_task(model, alone, task).result
    moved = run_task(model, ordered, replace(task, generate=1, warmup=0)).result
    return Parts(compute.decode_s / task.generate, sum(moved.bytes.values()))
