"""Record this process through CUPTI (extra ``cupti``): what a CUDA device really did.

CUPTI gives API calls and work with their times; the op log of the same run says where its tokens
begin. Both clocks are read together once, at the start.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self

from kvbench.device.capture import measured
from kvbench.device.oplog import OpLog
from kvbench.errors import UsageError
from kvbench.records.capture import (
    CAPTURE_VERSION,
    COPY_KINDS,
    ApiCall,
    Capture,
    NamedRange,
    Work,
    api_name,
)

BUFFER_BYTES = 8 << 20
_KINDS = ("RUNTIME", "DRIVER", "CONCURRENT_KERNEL", "MEMCPY", "MEMSET")


class CuptiTrace:
    """Context manager around a run; ``capture`` afterwards."""

    def __init__(self) -> None:
        try:
            from cupti import cupti
        except ImportError as error:
            raise UsageError(
                f"CUPTI cannot be loaded ({error}); install the extra: pip install 'kvbench[cupti]'"
            ) from None
        self._cupti: Any = cupti
        self._runtime: list[ApiCall] = []
        self._driver: list[ApiCall] = []
        self._work: list[Work] = []
        self._offset = 0

    def __enter__(self) -> Self:
        kinds = self._cupti.ActivityKind
        self._cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._take)
        for kind in _KINDS:
            self._cupti.activity_enable(getattr(kinds, kind))
        self._offset = self._clock_offset()
        return self

    def _clock_offset(self) -> int:
        """CUPTI's clock minus the log's, from the reading that was interrupted least."""
        readings: list[tuple[int, int]] = []
        for _ in range(9):
            before = time.perf_counter_ns()
            theirs = int(self._cupti.get_timestamp())
            after = time.perf_counter_ns()
            readings.append((after - before, theirs - (before + after) // 2))
        return min(readings)[1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._cupti.activity_flush_all(1)
        for name in _KINDS:
            self._cupti.activity_disable(getattr(self._cupti.ActivityKind, name))

    def _take(self, activities: Iterable[Any]) -> None:
        """A full buffer, in CUPTI's thread. Records are copied: they end with the call."""
        kinds, domains = self._cupti.ActivityKind, self._cupti.CallbackDomain
        for each in activities:
            if each.kind == kinds.RUNTIME:
                self._runtime.append(self._call(each, domains.RUNTIME_API))
            elif each.kind == kinds.DRIVER:
                self._driver.append(self._call(each, domains.DRIVER_API))
            elif each.kind == kinds.MEMCPY:
                direction = COPY_KINDS.get(each.copy_kind, f"kind {each.copy_kind}")
                self._work.append(_work(each, "copy", direction, each.bytes, direction))
            elif each.kind == kinds.MEMSET:
                self._work.append(_work(each, "memset", "memset", each.bytes))
            elif each.kind == kinds.CONCURRENT_KERNEL:
                self._work.append(_work(each, "kernel", str(each.name)))

    def _call(self, each: Any, domain: Any) -> ApiCall:
        return ApiCall(
            name=api_name(str(self._cupti.get_callback_name(domain, each.cbid))),
            start=each.start,
            end=each.end,
            thread=each.thread_id,
            correlation=each.correlation_id,
        )

    def capture(self, log: OpLog, arm: str, *, warmup: int, token_count: int) -> Capture:
        """What happened from the mark of token number ``warmup`` to the end of decoding."""
        window = measured(log.entries, warmup)
        starts = [round(e.issued * 1e9) + self._offset for e in window.tokens]
        first, last = window.first_ns + self._offset, window.last_ns + self._offset
        calls = [*self._runtime, *_outermost(self._driver, self._runtime)]
        return Capture(
            v=CAPTURE_VERSION,
            arm=arm,
            source="cupti",
            tool=f"cupti-python {version('cupti-python')}",
            tokens=token_count,
            api=tuple(sorted((c for c in calls if first <= c.start < last), key=lambda c: c.start)),
            work=tuple(
                sorted((w for w in self._work if first <= w.start < last), key=lambda w: w.start)
            ),
            ranges=tuple(
                NamedRange("token", a, b) for a, b in zip(starts, [*starts[1:], last], strict=True)
            ),
        )


def _outermost(driver: Sequence[ApiCall], runtime: Sequence[ApiCall]) -> list[ApiCall]:
    """Driver calls that the program made itself: those inside a runtime call are that call's."""
    found: list[ApiCall] = []
    by_thread: dict[int, list[ApiCall]] = {}
    for call in sorted(runtime, key=lambda c: c.start):
        by_thread.setdefault(call.thread, []).append(call)
    position = dict.fromkeys(by_thread, 0)
    for call in sorted(driver, key=lambda c: c.start):
        outer = by_thread.get(call.thread, [])
        at = position.get(call.thread, 0)
        while at < len(outer) and outer[at].end < call.start:
            at += 1
        position[call.thread] = at
        if at == len(outer) or not outer[at].start <= call.start <= outer[at].end:
            found.append(call)
    return found


def _work(each: Any, kind: Any, label: str, nbytes: int = 0, direction: str = "") -> Work:
    return Work(
        kind=kind,
        queue=f"GPU {each.device_id} stream {each.stream_id}",
        label=label,
        start=each.start,
        end=each.end,
        nbytes=nbytes,
        direction=direction,
        graph=bool(each.graph_node_id),
        correlation=each.correlation_id,
    )
