"""One task on the reference decoder: from prompts and settings to tokens, hashes and a Result.

The same path serves timing and verification: a run that is timed is hashed too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from kvbench.decoder import snapshot
from kvbench.decoder.collect import Collector, Top2, combined
from kvbench.decoder.counts import Counts, counts
from kvbench.decoder.drafting import DRAFT, speculating, tally_counters, tally_telemetry
from kvbench.decoder.engine import Engine
from kvbench.decoder.faults import DelayHooks, hooks_for
from kvbench.decoder.history import extract, insert
from kvbench.decoder.model import Model
from kvbench.decoder.seeded import SeededHistory, fill
from kvbench.decoder.settings import WEIGHT_BYTES, DecoderSettings
from kvbench.decoder.speculation import Speculation
from kvbench.device.cpu.explorer import Picker
from kvbench.device.oplog import OpLog
from kvbench.device.races import check
from kvbench.errors import UsageError
from kvbench.records import Result
from kvbench.records.capture import END, TOKEN
from kvbench.transport.levels import breakdown


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
    limits: bool = False
    """Measure afterwards what the device's link and memory can do (some tenths of a second)."""
    history: SeededHistory | None = None
    """Start from seeded rows instead of the prompts' prefill; a prompt is one token then."""


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
    _check(model, settings, task)
    steps = task.warmup + task.generate
    longest = max(len(p) for p in task.prompts) + (task.history.tokens if task.history else 0)
    capacity = settings.context or longest + steps
    log = OpLog() if settings.record or settings.telemetry > 1 else None
    hooks = hooks or hooks_for(settings)
    served = [task.prompts[hooks.history_of(i)][:-1] for i in range(len(task.prompts))]
    kept_prefills = task.snapshots and task.history is None
    started = [_history(model, p, settings) if kept_prefills else None for p in served]
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
    collect = Collector(len(task.prompts), task.detail, task.warmup)
    with engine, ExitStack() as stack:
        seeded = None if task.history is None else fill(engine, task.history)
        for sequence, (prompt, kept) in enumerate(zip(task.prompts, started, strict=True)):
            if kept is None:
                engine.prefill(sequence, prompt[:-1])
            elif kept.positions:
                insert(engine, sequence, kept)
        engine.drain("start")
        engines, speculation = {"": engine}, None
        if settings.speculates:
            speculation, beside = stack.enter_context(
                speculating(engine, task.prompts, _history if task.snapshots else None)
            )
            if beside is not None:
                engines[f"{DRAFT}."] = beside
        before = counts(engines)
        begin = time.perf_counter()
        if task.warmup == 0:
            collect.measured.start()
        if speculation is not None:
            _speculate(speculation, task, collect)
        else:
            teacher = None if task.teacher is None else dict(enumerate(task.teacher))
            engine.generate(
                {s: p[-1] for s, p in enumerate(task.prompts)}, steps, collect, teacher=teacher
            )
        collect.measured.end()
        if log is not None:
            log.mark(END)
        done = counts(engines).since(before)
        result = _result(engines, speculation, task, collect, started, begin, done)
        if seeded is not None:
            result.hashes["history"] = seeded
        if task.limits:
            result.metrics.update(_limits(engine))
    return DecodeRun(collect.tokens, collect.top2, collect.sequence_hashes(), result, log)


def _speculate(speculation: Speculation, task: DecodeTask, collect: Collector) -> None:
    """Warm-up, then the judged tokens: a round never crosses from one into the other."""
    texts = {s: list(p) for s, p in enumerate(task.prompts)}
    for tokens in (task.warmup, task.generate):
        if tokens:
            speculation.generate(texts, tokens, collect.add)
            collect.passed(tokens)


def _check(model: Model, settings: DecoderSettings, task: DecodeTask) -> None:
    if task.generate < 1 or task.warmup < 0:
        raise UsageError(f"generate = {task.generate}, warmup = {task.warmup}: at least 1 and 0")
    vocabulary = model.config.vocab_size
    for i, prompt in enumerate(task.prompts):
        if not prompt:
            raise UsageError(f"prompt {i} is empty: at least one token is needed")
        bad = next((t for t in prompt if not 0 <= t < vocabulary), None)
        if bad is not None:
            raise UsageError(f"prompt {i}: token {bad} is outside the vocabulary of {vocabulary}")
    if task.history is not None and any(len(prompt) != 1 for prompt in task.prompts):
        raise UsageError("history: seeded rows stand for the prompt; each prompt is one token then")
    if task.history is not None and settings.speculates:
        raise UsageError(f"draft = {settings.draft!r}: not on a seeded history; use history = text")
    if task.teacher is not None and settings.speculates:
        raise UsageError("teacher: forced tokens and a draft exclude each other")
    if task.teacher is not None:
        need = task.warmup + task.generate
        if len(task.teacher) != len(task.prompts) or any(len(t) < need for t in task.teacher):
            raise UsageError(f"teacher: {need} tokens are needed for each prompt")


def _history(model: Model, tokens: Sequence[int], settings: DecoderSettings) -> snapshot.Snapshot:
    """The prefill of ``tokens``: from the cache, or made now by a plain device-resident engine."""
    name = snapshot.key(model, tokens, settings)
    kept = snapshot.load(name)
    if kept is None:
        plain = DecoderSettings(
            device=settings.device,
            kv_type=settings.kv_type,
            weight_type=settings.weight_type,
            resident=True,
        )
        with Engine(model, plain, 1, max(len(tokens), 1)) as engine:
            begin = time.perf_counter()
            engine.prefill(0, tokens)
            engine.drain("prefill")
            kept = extract(engine, 0, prefill_s=time.perf_counter() - begin)
        snapshot.save(name, kept)
    return kept


def _result(
    engines: dict[str, Engine],
    speculation: Speculation | None,
    task: DecodeTask,
    collect: Collector,
    started: Sequence[snapshot.Snapshot | None],
    begin: float,
    done: Counts,
) -> Result:
    engine = engines[""]
    start = collect.times[task.warmup - 1] if task.warmup else begin
    seconds = collect.times[-1] - start
    sequences = len(task.prompts)
    steps = task.warmup + task.generate
    hashes = collect.hashes(audit=engine.settings.audit)
    kept = [s for s in started if s is not None]
    if kept:
        hashes["snapshot"] = combined([s.digest for s in kept])
    windows = sum(done.moved.get(k, 0) for k in ("early", "late", "ordered"))
    per_weight = WEIGHT_BYTES[engine.settings.weight_type]
    weights = engine.model.config.weights_read_per_token() * per_weight
    spoken: dict[str, Any] = {}
    counters = dict(done.calls)
    if speculation is not None:
        counters |= tally_counters(speculation.tally, speculation.draft)
        spoken["speculation"] = tally_telemetry(speculation.tally)
    return Result(
        tokens=task.generate * sequences,
        decode_s=seconds,
        metrics={
            "step_ms": seconds / task.generate * 1e3,
            "window_gb_s": windows / steps * task.generate / seconds / 1e9,
            "weight_gb_s": weights * sequences * task.generate / seconds / 1e9,
            "window_mib_per_step": windows / steps / (1 << 20),
            "weight_mib_per_step": weights / (1 << 20),
            **_prefill_speed(kept),
        },
        hashes=hashes,
        bytes=dict(done.moved),
        waits=done.sites,
        counters=counters,
        telemetry={
            **transport_of(engines.values(), engine.log),
            **spoken,
            **charged(engine.settings),
            **races_of(engine.log),
            **({"history": task.history.label()} if task.history else {}),
        },
        memory=memory_of(engines),
        sequences=sequences,
    )


def _limits(engine: Engine) -> dict[str, float]:
    """By name of metric; empty for a device without limits of its own."""
    found = engine.devices[0].limits()
    if found is None:
        return {}
    return {"link_limit_gb_s": found.link / 1e9, "memory_limit_gb_s": found.memory / 1e9}


def memory_of(engines: Mapping[str, Engine]) -> dict[str, int]:
    """Peak bytes and the rings' bytes, over all devices."""
    devices = [d for e in engines.values() for d in e.devices]
    stages = [s for e in engines.values() for s in e.stages]
    return {
        "device_peak": sum(d.peak_bytes["device"] for d in devices),
        "host_peak": sum(d.peak_bytes["host"] for d in devices),
        "ring": sum(s.pipeline.telemetry.ring_bytes for s in stages),
    }


def charged(settings: DecoderSettings) -> dict[str, Any]:
    """The label of a run whose waits cost a stated time; nothing where they cost what they cost."""
    return {"charged_wait_us": settings.wait_cost_us} if settings.wait_cost_us else {}


def transport_of(engines: Iterable[Engine], log: OpLog | None) -> dict[str, Any]:
    """What each device's transport did, at the level that was asked for (T21)."""
    found: dict[str, Any] = {}
    for engine in engines:
        for stage in engine.stages:
            told = stage.pipeline.telemetry.as_dict()
            if log is not None and engine.settings.telemetry > 1:
                told |= breakdown(log, stage.compute.name, TOKEN, engine.settings.telemetry)
            found[stage.device.name] = told
    return found


def races_of(log: OpLog | None) -> dict[str, Any]:
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
