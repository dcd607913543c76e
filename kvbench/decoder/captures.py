"""Captured graphs of one stage: a token's work in one launch, where its shape has come before.

A graph has baked in which slots and ranges it copies, so it may stand in only for a plan with the
same key (H1, H6). The first time a shape comes it runs eagerly, the second time it is captured:
many come once. Nothing outside waits for a mark made inside (H15): the pipeline settles before a
launch and leaves a mark after it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from kvbench.decoder.stage import Stage
from kvbench.device.api import Graph
from kvbench.device.kernels import Batch
from kvbench.device.ranges import ranged
from kvbench.errors import OutOfDeviceMemory
from kvbench.transport.pipeline import Next
from kvbench.transport.window import Geometry

MAX_GRAPHS = 24
"""Captured graphs kept; a window that outgrew its rounding leaves old ones behind."""


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: Graph
    batch: Batch
    """Whose places the graph's kernels look up at each replay."""


@dataclass(slots=True)
class Captures:
    """``work`` queues a batch's operations on the stage; ``eagerly`` does so outside a capture."""

    stage: Stage
    work: Callable[[Batch], None]
    eagerly: Callable[[Batch], None]
    _graphs: dict[Hashable, _Captured] = field(default_factory=dict)
    _seen: set[Hashable] = field(default_factory=set)
    _off: bool = False
    """Even the ordered path's graph had no room: everything runs eagerly."""

    def run(self, batch: Batch, geometry: Geometry, after: Next | None) -> None:
        """Plan this token's graph and launch it, or run it eagerly."""
        pipeline = self.stage.pipeline
        pipeline.prepare(geometry, after)
        captured = None if self._off else self._find(batch, geometry)
        if captured is None:
            self.eagerly(batch)
            return
        pipeline.settle()
        self.stage.device.launch(captured.graph)
        pipeline.launched()

    def _find(self, batch: Batch, geometry: Geometry) -> _Captured | None:
        key = self._key(batch)
        if key in self._graphs:
            return self._graphs[key]
        if key not in self._seen:
            self._seen.add(key)
            return None
        captured = self._try(batch, geometry)
        if captured is not None:
            self._keep(self._key(batch), captured)
        return captured

    def _key(self, batch: Batch) -> Hashable:
        return batch.groups, batch.outputs, batch.one_row_each, self.stage.pipeline.key()

    def _try(self, batch: Batch, geometry: Geometry) -> _Captured | None:
        """Capture this token's graph. Without memory for it the ring goes first, and the ordered
        path is tried once (T14); None if even that has no room: eager from then on."""
        pipeline = self.stage.pipeline
        try:
            return self._capture(batch)
        except OutOfDeviceMemory:
            pipeline.telemetry.declines["graph"] += 1
        if pipeline.give_up_rings():
            pipeline.prepare(geometry, None)
            try:
                return self._capture(batch)
            except OutOfDeviceMemory:
                pipeline.telemetry.declines["graph"] += 1
        self._off = True
        return None

    def _capture(self, batch: Batch) -> _Captured:
        pipeline, device = self.stage.pipeline, self.stage.device
        pipeline.settle()
        try:
            with ranged("capture"), device.capture(self.stage.compute) as graph:
                pipeline.fork()
                pipeline.prime()
                self.work(batch)
                pipeline.rejoin()
        except BaseException:
            pipeline.aborted()
            raise
        return _Captured(graph, batch)

    def _keep(self, key: Hashable, captured: _Captured) -> None:
        if len(self._graphs) >= MAX_GRAPHS:
            self.stage.device.synchronize(self.stage.compute, "drop graphs")
            self.drop()
        self._graphs[key] = captured

    def drop(self) -> None:
        """Destroy all graphs; the caller has waited for their last launch (H16)."""
        for old in self._graphs.values():
            self.stage.device.drop_graph(old.graph)
        self._graphs.clear()
        self._seen.clear()
