"""A capture as Chrome/Perfetto trace JSON: open it at ui.perfetto.dev or chrome://tracing.

Queues and the host are tracks, filled ring slots a counter, and arrows lead from a delivery to
the work that waited for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvbench.analysis.slots import occupied
from kvbench.records.capture import Capture

_HOST = 1
_FIRST_QUEUE = 10


def render_trace(captures: Sequence[Capture]) -> bytes:
    """One trace; each capture is a process of it, and starts at 0."""
    events: list[dict[str, Any]] = []
    for number, capture in enumerate(captures, 1):
        events += _capture(capture, number, flow_base=len(events))
    document = {"traceEvents": events, "displayTimeUnit": "ms"}
    return msgspec.json.encode(document)


def _capture(capture: Capture, pid: int, flow_base: int) -> list[dict[str, Any]]:
    origin = min([capture.span()[0], *(r.start for r in capture.ranges)])
    queues = {name: _FIRST_QUEUE + i for i, name in enumerate(_queues(capture))}
    events = [_name("process_name", pid, 0, f"{capture.arm} ({capture.source})")]
    events.append(_name("thread_name", pid, _HOST, "host: API calls"))
    events += [_name("thread_name", pid, tid, name) for name, tid in queues.items()]
    for call in capture.api:
        event = _slice(call.name, call.start - origin, call.end - call.start, pid, _HOST)
        events.append({**event, "args": {"site": call.site}})
    for work in capture.work:
        event = _slice(
            work.label, work.start - origin, work.end - work.start, pid, queues[work.queue]
        )
        facts = {
            "kind": work.kind,
            "site": work.site,
            "bytes": work.nbytes,
            "split": work.split,
            "slot": work.slot,
        }
        events.append({**event, "cat": work.site or work.kind, "args": facts})
    for each in capture.ranges:
        event = _slice(each.name, each.start - origin, each.end - each.start, pid, 0)
        events.append({**event, "cat": "range"})
    events += _flows(capture, pid, queues, origin, flow_base)
    return events + _slots(capture, pid, origin)


def _queues(capture: Capture) -> list[str]:
    return sorted({work.queue for work in capture.work})


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(name: str, start: int, length: int, pid: int, tid: int) -> dict[str, Any]:
    """A complete event; the format counts in microseconds."""
    return {"ph": "X", "name": name, "ts": start / 1e3, "dur": length / 1e3, "pid": pid, "tid": tid}


def _flows(
    capture: Capture, pid: int, queues: dict[str, int], origin: int, base: int
) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for work in capture.work:
        for source in work.after:
            before = capture.work[source]
            flow = {"name": "waits for", "cat": "flow", "pid": pid, "id": base + len(events) + 1}
            start = {"ph": "s", "tid": queues[before.queue], "ts": (before.end - origin) / 1e3}
            end = {"ph": "f", "tid": queues[work.queue], "ts": (work.start - origin) / 1e3}
            events += [{**flow, **start}, {**flow, **end, "bp": "e"}]
    return events


def _slots(capture: Capture, pid: int, origin: int) -> list[dict[str, Any]]:
    changes: list[tuple[int, int]] = []
    for slot in occupied(capture):
        changes += [(slot.start, 1), (slot.end, -1)]
    events, filled = [], 0
    for at, change in sorted(changes):
        filled += change
        events.append(
            {
                "ph": "C",
                "name": "ring slots in use",
                "pid": pid,
                "ts": (at - origin) / 1e3,
                "args": {"slots": filled},
            }
        )
    return events
