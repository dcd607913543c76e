"""From what a server streamed to a reply of the arm protocol; shared by the HTTP adapters."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kvbench.engines.protocol import Reply, Top2
from kvbench.engines.serve import EngineFailure
from kvbench.records import Result

T = TypeVar("T")


@dataclass(slots=True)
class Stream:
    """One sequence as it came in. ``count`` is the server's own count of generated tokens."""

    sent_at: float
    arrivals: list[float]
    count: int
    text: str
    stop: str
    tokens: list[int] | None = None
    pieces: list[str] | None = None
    """Each token's text, where ids are not to be had."""
    top2: list[Top2 | None] | None = None
    logprobs: list[dict[str, float]] | None = None
    prompt_count: int = 0
    numbers: dict[str, float] = field(default_factory=dict)
    """What else the server reported, averaged over sequences into ``metrics``."""


def asked(generate: int) -> int:
    """Tokens to ask a streaming server for, so that ``generate`` of them are timed."""
    return generate + 1


def reply(run_id: int, streams: Sequence[Stream], *, detail: bool) -> Reply:
    """Tokens after each sequence's first, over the time from the earliest first one to the last.

    Streams were asked for one token more (``asked``): the first comes out of the prefill. So the
    count is the task's own, whatever the arms overlap. Answers that came whole are timed from the
    first request sent and count every token.
    Raises EngineFailure("answer") where nothing could be timed.
    """
    arrivals = [stream.arrivals for stream in streams]
    if not all(arrivals) or not all(stream.count for stream in streams):
        raise EngineFailure("answer", "a sequence brought no tokens")
    streamed = any(len(times) > 1 for times in arrivals)
    started = min(s.arrivals[0] if streamed else s.sent_at for s in streams)
    ended = max(times[-1] for times in arrivals)
    texts = [stream.text for stream in streams]
    result = Result(
        tokens=sum(stream.count - streamed for stream in streams),
        decode_s=ended - started,
        metrics=_metrics(streams),
        hashes=_hashes(streams),
        counters={"prompt_tokens": sum(stream.prompt_count for stream in streams)},
        sequences=len(streams),
    )
    known = all(stream.tokens is not None for stream in streams)
    return Reply(
        id=run_id,
        result=result,
        tokens=[stream.tokens or [] for stream in streams] if detail and known else None,
        pieces=_all([s.pieces for s in streams]) if detail else None,
        top2=_all([s.top2 for s in streams]) if detail else None,
        logprobs=_all([s.logprobs for s in streams]) if detail else None,
        texts=texts if detail else None,
        stops=[stream.stop for stream in streams],
    )


def _all(rows: Sequence[T | None]) -> list[T] | None:
    """Every sequence's, or nothing."""
    given = [row for row in rows if row is not None]
    return given if len(given) == len(rows) else None


def _hashes(streams: Sequence[Stream]) -> dict[str, str]:
    text = hashlib.sha256()
    for stream in streams:
        data = stream.text.encode()
        text.update(struct.pack("<q", len(data)) + data)
    hashes = {"text": text.hexdigest()}
    if all(stream.tokens is not None for stream in streams):
        ids = hashlib.sha256()
        for stream in streams:
            tokens = stream.tokens or []
            ids.update(struct.pack(f"<{len(tokens)}i", *tokens))
        hashes["tokens"] = ids.hexdigest()
    return hashes


def _metrics(streams: Sequence[Stream]) -> dict[str, float]:
    n = len(streams)
    gaps = [b - a for s in streams for a, b in zip(s.arrivals, s.arrivals[1:], strict=False)]
    metrics = {
        "ttft_s": sum(s.arrivals[0] - s.sent_at for s in streams) / n,
        "e2e_s": sum(s.arrivals[-1] - s.sent_at for s in streams) / n,
    }
    if gaps:
        metrics["itl_s"] = sum(gaps) / len(gaps)
    for name in sorted({key for stream in streams for key in stream.numbers}):
        values = [stream.numbers[name] for stream in streams if name in stream.numbers]
        metrics[name] = sum(values) / len(values)
    return metrics
