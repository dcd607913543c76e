"""Issue: CUPTI fills the same capture; here by records as cupti-python hands them over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvbench.analysis.profile import call_table
from kvbench.device.oplog import OpLog
from kvbench.engines import cupti_trace
from kvbench.engines.cupti_trace import CuptiTrace
from kvbench.errors import UsageError
from kvbench.records.capture import END, TOKEN, tokens

KINDS = SimpleNamespace(RUNTIME=1, DRIVER=2, CONCURRENT_KERNEL=3, MEMCPY=4, MEMSET=5)
NAMES = {1: "cudaMemcpyAsync_v3020", 2: "cuMemcpyHtoDAsync_v2", 3: "cuLaunchKernel"}
AHEAD_NS = 5_000_000_000
"""CUPTI's clock runs this far ahead of the log's."""


class Library(ModuleType):
    """As much of cupti-python as is used; ``deliver`` is what its own thread would do."""

    def __init__(self) -> None:
        super().__init__("cupti")
        self.enabled: list[int] = []
        self.deliver: Callable[[list[Any]], None] = lambda records: None
        self.pending: list[Any] = []
        self.ActivityKind = KINDS
        self.CallbackDomain = SimpleNamespace(RUNTIME_API=10, DRIVER_API=11)

    def activity_register_callbacks(self, requested: Any, completed: Any) -> None:
        assert requested()[0] > 0
        self.deliver = completed

    def activity_enable(self, kind: int) -> None:
        self.enabled.append(kind)

    def activity_disable(self, kind: int) -> None:
        self.enabled.remove(kind)

    def activity_flush_all(self, flag: int) -> None:
        self.deliver(self.pending)

    def get_timestamp(self) -> int:
        return time.perf_counter_ns() + AHEAD_NS

    def get_callback_name(self, domain: int, cbid: int) -> str:
        return NAMES[cbid]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    package, module = ModuleType("cupti"), Library()
    package.cupti = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setattr(cupti_trace, "version", lambda _: "13.0")
    return module


def call(kind: int, cbid: int, start: int, end: int, thread: int = 7) -> SimpleNamespace:
    return SimpleNamespace(
        kind=kind, cbid=cbid, start=start, end=end, thread_id=thread, correlation_id=cbid
    )


def work(kind: int, start: int, **fields: Any) -> SimpleNamespace:
    common = {"device_id": 0, "stream_id": 13, "correlation_id": 1, "graph_node_id": 0}
    return SimpleNamespace(kind=kind, start=start, end=start + 10, **{**common, **fields})


def test_records_become_a_capture_of_the_measured_tokens(library: Library) -> None:
    log = OpLog()
    with CuptiTrace() as trace:
        assert sorted(library.enabled) == [1, 2, 3, 4, 5]
        for step in range(3):
            log.mark(TOKEN, step=step)
            time.sleep(0.005)
        log.mark(END)
        warm, second, last = (round(e.issued * 1e9) + AHEAD_NS for e in log.entries[:3])
        warm, second = warm - 2_000_000, second + 2_000_000  # well inside, whatever the clocks say
        library.pending = [
            call(KINDS.RUNTIME, 1, second + 1, second + 50),
            call(KINDS.DRIVER, 2, second + 5, second + 40),
            call(KINDS.DRIVER, 3, second + 60, second + 70),
            call(KINDS.DRIVER, 3, second + 6, second + 7, thread=8),
            call(KINDS.RUNTIME, 1, warm - 1000, warm - 900),
            work(KINDS.CONCURRENT_KERNEL, second + 80, name="attend"),
            work(KINDS.MEMCPY, second + 90, bytes=64, copy_kind=1, graph_node_id=5),
            work(KINDS.MEMSET, second + 95, bytes=8),
            work(KINDS.CONCURRENT_KERNEL, last + 10**9, name="later"),
        ]
    assert library.enabled == []
    captured = trace.capture(log, "arm", warmup=1, token_count=2)
    counts = {r.name: r.arms["arm"].calls for r in call_table([captured])}
    assert counts == {"cudaMemcpyAsync": 1, "cuLaunchKernel": 2}, "nested driver calls are left out"
    assert [(w.kind, w.label, w.graph) for w in captured.work] == [
        ("kernel", "attend", False), ("copy", "host_to_device", True), ("memset", "memset", False),
    ]  # fmt: skip
    assert captured.work[1].queue == "GPU 0 stream 13"
    assert (captured.source, captured.tokens, len(tokens(captured))) == ("cupti", 2, 2)
    assert tokens(captured)[0].start < second < tokens(captured)[1].start


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupti", None)
    with pytest.raises(UsageError, match=r"install the extra: pip install 'kvbench\[cupti\]'"):
        CuptiTrace()
