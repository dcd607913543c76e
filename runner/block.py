"""One block: its runs in order, each a fresh process. The same code runs here and on a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from kvbench.engines import supervisor
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task
from kvbench.engines.supervisor import ArmRun, Timeouts
from kvbench.environment import Sampler, fingerprint_hash, violations
from kvbench.errors import UsageError
from kvbench.records import Failure, Result, RunLine
from kvbench.records.lines import SCHEMA_VERSION
from kvbench.spec import Limits
from runner import receipt

BYE_S = 10.0
MAX_KIND, MAX_MESSAGE = 40, 400
"""Characters of a failure that are recorded."""
MAX_JUDGED_BYTES = 700
"""Of a result's hashes and bytes moved, as JSON; they stand in the journal line itself."""


class BlockJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Pure data: everything a worker needs to run one block."""

    run: str
    cell: str
    block: int
    attempt: int
    order: tuple[str, ...]
    """Arms in run order, both passes."""
    arms: dict[str, Arm]
    task: Task
    run_s: float
    """Time-out of one run."""
    limits: Limits
    affinity: dict[str, tuple[int, ...]] = {}
    """Arm -> CPU numbers of its process."""
    worker: str | None = None


Emit = Callable[[RunLine, dict[str, Any]], None]
"""Called after each run with its line and the fingerprint that the line refers to."""


def run_block(
    job: BlockJob, machine: dict[str, Any], emit: Emit, doing: Callable[[str], None]
) -> None:
    """Run the block's runs until its end or the first failure.

    ``machine`` is this process's fingerprint; ``doing`` is told what starts.
    """
    known = {name: receipt.before_start(arm) for name, arm in job.arms.items()}
    for position, name in enumerate(job.order):
        doing(f"{job.cell}, block {job.block + 1}, run {position + 1}/{len(job.order)}: {name}")
        line, run = run_once(job, position)
        environment = {**machine, "arm": receipt.after_run(known[name], run)}
        line = msgspec.structs.replace(line, environment=fingerprint_hash(environment))
        emit(line, environment)
        if line.failure is not None:
            return


def run_once(job: BlockJob, position: int) -> tuple[RunLine, ArmRun]:
    """One run in a fresh process; its line lacks the environment's hash."""
    name = job.order[position]
    started, begin = time.time(), time.monotonic()
    with Sampler() as sampler:
        run = run_arm(job.arms[name], job.task, job.run_s, job.affinity.get(name))
    outcome = _checked(run)
    failed = isinstance(outcome, Failure)
    line = RunLine(
        v=SCHEMA_VERSION,
        run=job.run,
        cell=job.cell,
        block=job.block,
        attempt=job.attempt,
        position=position,
        pass_=position // len(job.arms),
        arm=name,
        started=started,
        wall_s=round(time.monotonic() - begin, 4),
        environment="",
        result=None if isinstance(outcome, Failure) else outcome,
        failure=outcome if isinstance(outcome, Failure) else None,
        telemetry=_telemetry(sampler.sample.values, run),
        violations=() if failed else violations(sampler.sample, job.limits),
        worker=job.worker,
    )
    return line, run


def _telemetry(values: dict[str, float], run: ArmRun) -> dict[str, float]:
    seconds = {f"{phase}_s": round(spent, 4) for phase, spent in run.phases.items()}
    rss = {"arm_rss_mib": run.exit.max_rss_kib / 1024} if run.exit else {}
    return {**values, **seconds, **rss}


def _checked(run: ArmRun) -> Result | Failure:
    """A result that can be judged and recorded: it took time, gave tokens, fits a journal line."""
    result = run.result
    if isinstance(result, Failure):
        return Failure(result.kind[:MAX_KIND], result.message[:MAX_MESSAGE])
    if not (result.tokens > 0 and result.decode_s > 0):
        return Failure(
            "implausible", f"{result.tokens} tokens in {result.decode_s} s give no speed"
        )
    judged = len(msgspec.json.encode((result.hashes, result.bytes, result.tokens)))
    if judged > MAX_JUDGED_BYTES:
        return Failure(
            "implausible",
            f"its hashes and byte counts take {judged} bytes; {MAX_JUDGED_BYTES} are allowed",
        )
    return result


def run_arm(arm: Arm, task: Task, run_s: float, cpus: Sequence[int] | None = None) -> ArmRun:
    """One task in a fresh process that has ``run_s`` seconds in all. Failures are data."""
    timeouts = Timeouts(run_s, run_s, run_s, bye=min(BYE_S, run_s), total=run_s)
    with pinned(cpus):
        return supervisor.run_once(arm, task, timeouts)


@contextmanager
def pinned(cpus: Sequence[int] | None) -> Iterator[None]:
    """Processes started by this thread meanwhile run on ``cpus`` only."""
    if cpus is None:
        yield
        return
    if not hasattr(os, "sched_setaffinity"):
        raise UsageError("affinity: this system cannot bind processes to CPUs")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise UsageError(
            f"affinity: {list(cpus)}: {error.strerror}; this process may use {sorted(before)}"
        ) from error
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
