"""Sends the requests and notes when what arrived. Nothing else happens while it measures."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvbench.engines.http import Client, HttpFailure, Response
from kvbench.engines.load.spec import LoadSpec
from kvbench.engines.serve import EngineFailure
from kvbench.engines.urls import Target

Body = Callable[[int], dict[str, Any]]
"""The JSON body of request number i, built before the clock starts."""
Read = Callable[[Response], "Answer"]
"""What an answer means. Raises EngineFailure; called after the clock has stopped."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete stream: when each piece arrived, and the server's own count of tokens."""

    arrivals: Sequence[float]
    tokens: int
    cached: int = 0


@dataclass(slots=True)
class Outcome:
    """One request: when it was due, when it was sent, and what came of it."""

    due: float
    """In a closed loop the time it was sent: there is no schedule to fall behind."""
    sent: float
    answer: Answer | None = None
    error: str = ""
    """Stable kind: ``timeout``, ``connect``, ``closed``, ``status 503``, ``answer``, ``count``."""
    message: str = ""


@dataclass(slots=True)
class Driven:
    """A point's outcomes, and what measuring it cost."""

    outcomes: list[Outcome] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """CPU seconds of this process while requests were under way."""


def drive(
    target: Target,
    path: str,
    spec: LoadSpec,
    body: Body,
    read: Read,
    *,
    headers: dict[str, str] | None = None,
) -> Driven:
    """Put ``spec`` on the server. Failures of requests are outcomes, never raised."""
    bodies = [body(number) for number in range(spec.requests)]
    raw: list[tuple[Outcome, Response | None]] = []
    driven = Driven()
    # A collection in mid-measurement would show as latency of the server.
    gc.collect()
    gc.disable()
    try:
        cpu, wall = time.process_time(), time.monotonic()
        asyncio.run(_all(target, path, spec, bodies, headers or {}, raw))
        driven.cpu_s = time.process_time() - cpu
        driven.wall_s = time.monotonic() - wall
    finally:
        gc.enable()
    driven.outcomes = [_settled(outcome, response, spec, read) for outcome, response in raw]
    return driven


async def _all(
    target: Target,
    path: str,
    spec: LoadSpec,
    bodies: Sequence[dict[str, Any]],
    headers: dict[str, str],
    raw: list[tuple[Outcome, Response | None]],
) -> None:
    async with Client(target, headers=headers, timeout_s=spec.timeout_s) as client:

        async def send(number: int, due: float | None) -> None:
            now = time.monotonic()
            outcome = Outcome(due=now if due is None else due, sent=now)
            response = None
            try:
                response = await client.post(path, bodies[number])
            except HttpFailure as failure:
                refused = failure.kind == "status"
                outcome.error = f"status {failure.status}" if refused else failure.kind
                outcome.message = str(failure)
            raw.append((outcome, response))

        if spec.rate is not None:
            await _open(spec, send)
        else:
            await _closed(spec, send)


async def _open(spec: LoadSpec, send: Callable[[int, float | None], Any]) -> None:
    """Every request leaves when it is due, also while earlier ones are unanswered."""
    start = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number, offset in enumerate(spec.arrivals()):
            due = start + offset
            wait = due - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            group.create_task(send(number, due))


async def _closed(spec: LoadSpec, send: Callable[[int, float | None], Any]) -> None:
    numbers = iter(range(spec.requests))

    async def client() -> None:
        for number in numbers:
            await send(number, None)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(spec.concurrency or 1, spec.requests)):
            group.create_task(client())


def _settled(outcome: Outcome, response: Response | None, spec: LoadSpec, read: Read) -> Outcome:
    """Read the answer. A stream that is whole but too short is an error of its own."""
    if response is None:
        return outcome
    try:
        answer = read(response)
    except EngineFailure as failure:
        outcome.error, outcome.message = failure.kind, str(failure)
        return outcome
    if answer.tokens != spec.generate:
        outcome.error = "count"
        outcome.message = f"{answer.tokens} tokens instead of {spec.generate}"
    elif not answer.arrivals:
        outcome.error, outcome.message = "answer", "no tokens arrived"
    else:
        outcome.answer = answer
    return outcome
