"""Telemetry levels 2 and 3 (T21): where a token's time goes, read off a recorded run.

Level 2, means over each 128 graphs, milliseconds: the whole token, copies that block the compute
queue, the compute queue waiting for a delivery, the host issuing. Level 3: name, size and cost of
each copy that still blocks, per token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from kvbench.device.oplog import Entry, OpLog

GROUP = 128
KEPT = 4
"""Groups in a record: the last ones, so that a journal line stays small."""
COPIES = 8
ISSUED = "issued"
"""Mark that the host leaves when a token's graph is queued."""


def breakdown(log: OpLog, compute: str, token: str, level: int) -> dict[str, Any]:
    """JSON-able means of the decode loop; ``compute`` is the queue, ``token`` the loop's mark."""
    starts = [i for i, e in enumerate(log.entries) if e.kind == "mark" and e.label == token]
    graphs = [_graph(log.entries[a:b], compute) for a, b in pairwise([*starts, len(log.entries)])]
    times = [
        {"total_ms": _between(graphs[i], graphs[i + 1]), **_parts(graphs[i])}
        for i in range(len(graphs) - 1)
    ]
    groups = [times[i : i + GROUP] for i in range(0, len(times), GROUP)]
    found: dict[str, Any] = {"means": [_mean(group) for group in groups[-KEPT:]]}
    if level >= 3:
        found["blocking_copies"] = _copies(graphs)
    return found


class _Graph:
    """One token's entries: marks, operations of the compute queue, and waits before them."""

    def __init__(self, entries: Sequence[Entry], compute: str) -> None:
        self.begin = entries[0].issued
        self.issued = next((e.issued for e in entries if e.label == ISSUED), self.begin)
        self.ops: list[tuple[Entry, bool]] = []
        waited = False
        for entry in entries:
            if entry.queue != compute:
                continue
            if entry.kind == "wait" and entry.site in ("ready", "launch"):
                waited = True
            elif entry.kind == "op":
                self.ops.append((entry, waited))
                waited = False


def _graph(entries: Sequence[Entry], compute: str) -> _Graph:
    return _Graph(entries, compute)


def _between(graph: _Graph, after: _Graph) -> float:
    if not graph.ops or not after.ops:
        return 0.0
    return (after.ops[0][0].start - graph.ops[0][0].start) * 1e3


def _blocking(entry: Entry) -> bool:
    return entry.tags.get("direction") == "host_to_device"


def _parts(graph: _Graph) -> dict[str, float]:
    blocked = sum(e.end - e.start for e, _ in graph.ops if _blocking(e))
    idle = sum(max(0.0, b.start - a.end) for (a, _), (b, waited) in pairwise(graph.ops) if waited)
    return {
        "blocked_copy_ms": blocked * 1e3,
        "consumer_wait_ms": idle * 1e3,
        "issue_ms": (graph.issued - graph.begin) * 1e3,
    }


def _mean(group: Sequence[dict[str, float]]) -> dict[str, float]:
    return {
        "graphs": len(group),
        **{name: round(sum(g[name] for g in group) / len(group), 4) for name in group[0]},
    }


def _copies(graphs: Sequence[_Graph]) -> list[dict[str, Any]]:
    """The costliest blocking copies by site: size and milliseconds per token."""
    cost: dict[str, float] = defaultdict(float)
    size: dict[str, int] = defaultdict(int)
    for graph in graphs:
        for entry, _ in graph.ops:
            if _blocking(entry):
                cost[entry.site] += (entry.end - entry.start) * 1e3
                size[entry.site] += entry.nbytes
    ranked = sorted(cost, key=lambda site: -cost[site])[:COPIES]
    n = len(graphs)
    return [{"name": s, "bytes": size[s] // n, "ms": round(cost[s] / n, 4)} for s in ranked]
