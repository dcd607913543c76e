"""The engine loop: batches in, logits out, over one or several devices.

``prefill`` and ``generate`` are the loops; ``_step`` is one graph: plan, issue (or launch a
captured graph), read back. With waits = quiet nothing waits on the host: arg-max feeds the next
token on the device and the host reads ``lag`` tokens behind. The other patterns sample on the
host, and wait where a stock engine does (waits.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kvbench.decoder import arithmetic
from kvbench.decoder.cache import KVCache, Row
from kvbench.decoder.devices import open_devices
from kvbench.decoder.model import Model
from kvbench.decoder.readback import Readback, StepOutput
from kvbench.decoder.settings import DecoderSettings
from kvbench.decoder.stage import AttentionLayer, RecurrentLayer, Stage
from kvbench.decoder.upload import Tokens, Upload
from kvbench.decoder.waits import AFTER, AFTER_GRAPH, BEFORE, BEFORE_GRAPH, WaitPattern
from kvbench.device.api import Device, Event, Graph
from kvbench.device.cpu.explorer import Picker
from kvbench.device.kernels import MAX_DECODE_ROWS, TILE, Batch, Group
from kvbench.device.kvtypes import kv_type
from kvbench.device.memory import Span
from kvbench.device.oplog import OpLog
from kvbench.device.ranges import ranged
from kvbench.device.shift import shift_rows, shift_spans
from kvbench.errors import OutOfDeviceMemory, UsageError
from kvbench.records.capture import TOKEN
from kvbench.transport.hooks import TransportHooks
from kvbench.transport.levels import ISSUED
from kvbench.transport.pipeline import Next
from kvbench.transport.window import Geometry, resident_view

MAX_GRAPHS = 24
"""Captured graphs kept; a window that outgrew its rounding leaves old ones behind."""

Sink = Callable[[StepOutput], None]


@dataclass(slots=True)
class _Captured:
    graph: Graph
    batch: Batch


@dataclass(slots=True)
class Engine:
    """A model on its devices with one KV cache. Close it, or use it as a context manager."""

    model: Model
    settings: DecoderSettings
    sequences: int
    capacity: int
    hooks: TransportHooks = field(default_factory=TransportHooks)
    log: OpLog | None = None
    picker: Picker | None = None
    device_bytes: int | None = None
    name: str = ""
    """Of its devices; the device's kind by default."""
    beside: Engine | None = None
    """An engine on the same machine, whose order of work the explorer shares."""
    devices: list[Device] = field(init=False)
    stages: list[Stage] = field(init=False)
    cache: KVCache = field(init=False)
    waits: WaitPattern = field(init=False)
    _graphs: dict[Hashable, _Captured] = field(init=False)
    _seen: set[Hashable] = field(init=False)
    _no_graphs: bool = field(init=False, default=False)
    _batches: dict[Hashable, Batch] = field(init=False)
    _events: dict[str, tuple[Device, Event]] = field(init=False)
    _readback: Readback = field(init=False)
    _uploads: list[Upload] = field(init=False)

    def __post_init__(self) -> None:
        arithmetic.pin()
        config, settings = self.model.config, self.settings
        if not 1 <= self.sequences <= MAX_DECODE_ROWS:
            raise UsageError(f"sequences = {self.sequences}: from 1 to {MAX_DECODE_ROWS}")
        if self.capacity > config.context:
            raise UsageError(
                f"{self.capacity} positions a sequence exceed the context of {config.name}, "
                f"{config.context}"
            )
        if settings.devices > config.n_layers:
            raise UsageError(f"devices = {settings.devices}: at most {config.n_layers} layers")
        codec = kv_type(settings.kv_type, n_kv_heads=config.n_kv_heads, head_dim=config.head_dim)
        multiple = settings.row_multiple
        rows = -(-self.capacity // multiple) * multiple
        self.cache = KVCache(
            self.sequences, rows, codec.pitch, unified=settings.unified, row_multiple=multiple
        )
        self._graphs, self._batches, self._events, self._seen = {}, {}, {}, set()
        self.stages = []
        self.waits = WaitPattern(settings.waits, self.stages)
        self.devices = open_devices(
            settings,
            log=self.log,
            hooks=self.hooks,
            picker=self.picker,
            capacity=self.device_bytes,
            name=self.name,
            beside=self.beside.devices[0] if self.beside is not None else None,
        )
        try:
            for device, layers in zip(self.devices, self._split(), strict=True):
                self.stages.append(
                    Stage(
                        device,
                        config,
                        self.model.weights,
                        self.cache,
                        codec,
                        settings,
                        self.hooks,
                        layers,
                    )
                )
            self._open_events()
            self._readback = Readback(self.stages[-1], self.waits, self._lag + 1)
            self._uploads = [
                Upload(s, self.cache, self.waits, settings.lag + 2) for s in self.stages
            ]
        except BaseException:
            self._end_devices()
            raise

    # -------------------------------------------------------------------- loops
    def prefill(self, sequence: int, tokens: Sequence[int]) -> None:
        """Run ``tokens`` of one sequence through the model in tiles; no logits."""
        for start in range(0, len(tokens), TILE):
            with ranged("prefill"):
                part = tokens[start : start + TILE]
                self.waits.at(BEFORE)
                rows = self.cache.append([(sequence, len(part))])
                batch = self._batch((Group(0, len(part), True),), ())
                self._upload(batch, rows, part)
                self._step(batch, rows, None, advance=False)
                self.waits.at(AFTER)

    def generate(
        self,
        feed: Mapping[int, int],
        n: int,
        sink: Sink,
        *,
        teacher: dict[int, Sequence[int]] | None = None,
        stop: Callable[[], bool] | None = None,
        more: bool = False,
    ) -> int:
        """``n`` steps of every sequence in ``feed`` (sequence to its next input token).

        ``sink`` sees each step's outputs, rows in ascending order of sequence. With ``teacher``
        (the tokens to feed after the first) the model is forced along them. Once ``stop`` is true
        after a sink no more steps are issued; as many as were are returned: rows beyond the last
        one that the sink saw are in the cache and may still be in flight (H10). ``more``: the
        caller may go on, so the look-ahead reaches past the last step.
        """
        order = sorted(feed)
        groups = tuple(Group(i, 1, False) for i in range(len(order)))
        batch = self._batch(groups, tuple(range(len(order))))
        lag = self._lag
        for t in range(n):
            if self.log is not None:
                self.log.mark(TOKEN, step=t)
            with ranged(TOKEN):
                self.waits.at(BEFORE)
                rows = self.cache.append([(s, 1) for s in order])
                self._feed(batch, rows, t, feed, teacher)
                following = self.cache.following(rows) if more or t + 1 < n else None
                self._step(batch, rows, Next(*following) if following else None, advance=True)
                if self.log is not None:
                    self.log.mark(ISSUED)
                self._readback.push(t, batch.outputs)
                if t >= lag:
                    feed = self._take(t - lag, order, sink)
                    if stop is not None and stop():
                        return t + 1
        for t in range(max(0, n - lag), n):
            self._take(t, order, sink)
            if stop is not None and stop():
                break
        return n

    def decode(
        self,
        feed: Mapping[int, Sequence[int | None]],
        *,
        assumed: Mapping[int, int] | None = None,
        ahead: Mapping[int, int] | None = None,
        place: Callable[[Engine, Sequence[Row]], None] | None = None,
        read: int | None = None,
    ) -> list[Row]:
        """One graph in which a sequence takes several tokens, each in a row of its own.

        None stands for a token that ``place`` brings to its row. ``assumed``: rows that the graph
        before took to be stable when it looked ahead. ``ahead``: tokens that each sequence takes
        in the next graph, if any number of this graph's tokens but the first may be rolled back
        before (H9). ``read``: the index under which all rows' outputs are read back.
        """
        order = sorted(feed)
        if sum(len(feed[s]) for s in order) > MAX_DECODE_ROWS:
            raise UsageError(f"a decode batch takes up to {MAX_DECODE_ROWS} rows")
        self.waits.at(BEFORE)
        rows = self.cache.append([(s, len(feed[s])) for s in order], assumed)
        groups = tuple(Group(i, 1, False) for i in range(len(rows)))
        batch = self._batch(groups, tuple(range(len(rows))) if read is not None else ())
        self._upload(batch, rows, [t for s in order for t in feed[s]])
        if place is not None:
            place(self, rows)
        following = self.cache.following(rows, ahead) if ahead is not None else None
        self._step(batch, rows, Next(*following) if following else None, advance=True)
        if read is None:
            self.waits.at(AFTER)
        else:
            self._readback.push(read, batch.outputs)
        return rows

    def run_ahead(self, feed: Mapping[int, int], n: int, queued: Callable[[int], None]) -> None:
        """``n`` steps whose tokens stay on the device (waits = quiet); ``queued(t)`` follows each,
        to queue what takes its tokens away."""
        order = sorted(feed)
        groups = tuple(Group(i, 1, False) for i in range(len(order)))
        batch = self._batch(groups, tuple(range(len(order))))
        for t in range(n):
            rows = self.cache.append([(s, 1) for s in order])
            self._feed(batch, rows, t, feed, None)
            following = self.cache.following(rows) if t + 1 < n else None
            self._step(batch, rows, Next(*following) if following else None, advance=True)
            queued(t)

    def read(self, index: int) -> StepOutput:
        """The outputs of the graph that was to be read back under ``index``."""
        return self._readback.pull(index)

    def sample(self, output: StepOutput, row: int) -> int:
        """The greedy token of one output row, by the host or the device (waits.py)."""
        return self._readback.sample(output, row)

    def mixed(self, decode: dict[int, int], sequence: int, tokens: Sequence[int]) -> StepOutput:
        """One graph of decode rows and one prompt tile of another sequence (T20)."""
        order = sorted(decode)
        if sequence in decode or not 1 <= len(tokens) <= TILE:
            raise UsageError(f"a mixed batch takes up to {TILE} tokens of a sequence of its own")
        groups = (
            *(Group(i, 1, False) for i in range(len(order))),
            Group(len(order), len(tokens), True),
        )
        self.waits.at(BEFORE)
        batch = self._batch(groups, tuple(range(len(order))))
        rows = self.cache.append([*((s, 1) for s in order), (sequence, len(tokens))])
        self._upload(batch, rows, [*(decode[s] for s in order), *tokens])
        self._step(batch, rows, None, advance=False)
        self._readback.push(0, batch.outputs)
        return self._readback.pull(0)

    def _take(self, t: int, order: Sequence[int], sink: Sink) -> dict[int, int]:
        """Read step ``t`` behind, sample it, and show it to ``sink``: the tokens to feed next."""
        output = self._readback.pull(t)
        tokens = [self._readback.sample(output, row) for row in range(len(order))]
        self.waits.at(AFTER)
        sink(replace(output, tokens=np.asarray(tokens, np.int32)))
        return dict(zip(order, tokens, strict=True))

    @property
    def _lag(self) -> int:
        """Tokens that the host may be behind: none where it chooses the next one."""
        return 0 if self.waits.host_samples else self.settings.lag

    # --------------------------------------------------------- history rewritten
    def drain(self, reason: str) -> None:
        """Wait for all readers and writers of the cache; a look-ahead in flight is dropped."""
        for stage in self.stages:
            stage.pipeline.drain(reason)

    def truncate(self, sequence: int, length: int) -> None:
        """Roll a sequence back to ``length`` positions."""
        self._refuse_recurrent("roll back")
        self.cache.truncate(sequence, length)

    def reset(self, sequence: int) -> None:
        """Empty one sequence while others go on."""
        self.cache.reset(sequence)
        for stage in self.stages:
            for item in stage.layers:
                if isinstance(item, RecurrentLayer):
                    self._zero_state(stage, item, sequence)

    def clear(self) -> None:
        """Empty all sequences and overwrite the memory (T17)."""
        self.drain("clear")
        self.cache.clear()
        for stage in self.stages:
            for item in stage.layers:
                if isinstance(item, AttentionLayer):
                    self._fill(stage, item.storage.buffer.span())
        for sequence in range(self.sequences):
            self.reset(sequence)

    def shift(self, sequence: int, keep: int, discard: int) -> None:
        """Drop positions [keep, keep + discard) of a sequence and close up (T20)."""
        self._refuse_recurrent("shift")
        self.drain("shift")
        moves, delta = self.cache.shift(sequence, keep, discard)
        if not moves:
            return
        for stage in self.stages:
            for item in stage.layers:
                assert isinstance(item, AttentionLayer)
                view = resident_view(item.storage)
                kernels, raw = stage.kernels, item.storage.buffer.raw
                if item.storage.buffer.space == "device":
                    stage.device.submit(stage.compute, kernels.shift(view, moves, delta))
                    continue

                def rewrite(raw: Any = raw, view: Any = view, kernels: Any = kernels) -> None:
                    shift_rows(raw, view, kernels.codec, kernels.shapes, moves, delta)

                reads, writes = shift_spans(view, moves)
                stage.device.host("shift", rewrite, reads=reads, writes=writes, site="shift")

    # ----------------------------------------------------------------- one graph
    def _step(
        self, batch: Batch, rows: Sequence[Row], after: Next | None, *, advance: bool
    ) -> None:
        geometry = self.cache.geometry(rows)
        batch.where = [r.where for r in rows]
        self.waits.at(BEFORE_GRAPH)
        if self.settings.graphs and advance and not self._no_graphs:
            self._launch(batch, geometry, after)
        else:
            self._prepare(geometry, after)
            self._issue(batch, advance=advance)
        self.waits.at(AFTER_GRAPH)

    def _issue(self, batch: Batch, *, advance: bool) -> None:
        """Queue every operation of the prepared graph, one by one."""
        for stage in self.stages:
            stage.pipeline.prime()
        self._forward(batch, advance=advance)
        for stage in self.stages:
            stage.pipeline.end()

    def _prepare(self, geometry: Geometry, after: Next | None) -> None:
        for stage in self.stages:
            stage.pipeline.prepare(geometry, after)

    def _forward(self, batch: Batch, *, advance: bool) -> None:
        first, last = self.stages[0], self.stages[-1]
        first.feed_input()
        first.device.submit(first.compute, first.kernels.embed(batch))
        for before, stage in zip([None, *self.stages], self.stages, strict=False):
            if before is not None:
                self._hand_over(before, stage, "x", "sums")
            stage.run_layers(batch)
        if batch.outputs:
            last.device.submit(last.compute, last.kernels.head(batch))
            last.device.submit(last.compute, last.kernels.choose(batch, advance=advance))
        for stage in self.stages[:-1]:
            if advance:
                self._hand_over(last, stage, "state")
            else:  # the next graph's first rows must not overtake the last stage's copy of x
                self._behind(stage, last)

    def _hand_over(self, before: Stage, stage: Stage, *names: str) -> None:
        """Copy buffers of the kernels between devices, on the receiving queue."""
        self._behind(stage, before)
        for name in names:
            source, target = getattr(before.kernels, name), getattr(stage.kernels, name)
            stage.device.copy(
                stage.compute, target.span(), source.span(), site="hand_over", label=f"hand {name}"
            )

    def _behind(self, stage: Stage, before: Stage) -> None:
        """What ``stage`` computes next follows what ``before`` was given so far."""
        _, event = self._events[f"{before.device.name}>{stage.device.name}"]
        before.device.record(before.compute, event)
        stage.device.wait(stage.compute, event, "hand_over")

    def _open_events(self) -> None:
        """One event for each ordered pair of devices, before any work (T11)."""
        for before, stage in itertools.permutations(self.stages, 2):
            name = f"{before.device.name}>{stage.device.name}"
            self._events[name] = (before.device, before.device.event(name))

    # ------------------------------------------------------------ captured graphs
    def _launch(self, batch: Batch, geometry: Geometry, after: Next | None) -> None:
        """Launch this token's graph, captured the second time its shape comes (H1, H6, H15)."""
        (stage,) = self.stages
        pipeline = stage.pipeline
        self._prepare(geometry, after)
        key = (batch.groups, batch.outputs, pipeline.key())
        captured = self._graphs.get(key)
        if captured is None and key not in self._seen:
            self._seen.add(key)  # the first time it runs eagerly: many shapes come only once
            self._issue(batch, advance=True)
            return
        if captured is None:
            captured = self._captured(stage, batch, geometry)
            if captured is None:
                self._issue(batch, advance=True)
                return
            self._keep(stage, (batch.groups, batch.outputs, pipeline.key()), captured)
        pipeline.settle()
        stage.device.launch(captured.graph)
        pipeline.launched()

    def _captured(self, stage: Stage, batch: Batch, geometry: Geometry) -> _Captured | None:
        """Capture this token's graph. Without memory for it the ring goes first, and the ordered
        path is tried once (T14); None if even that has no room: issued eagerly from then on."""
        try:
            return self._capture(stage, batch)
        except OutOfDeviceMemory:
            stage.pipeline.telemetry.declines["graph"] += 1
        if stage.pipeline.give_up_rings():
            self._prepare(geometry, None)
            try:
                return self._capture(stage, batch)
            except OutOfDeviceMemory:
                stage.pipeline.telemetry.declines["graph"] += 1
        self._no_graphs = True
        return None

    def _capture(self, stage: Stage, batch: Batch) -> _Captured:
        stage.pipeline.settle()
        try:
            with ranged("capture"), stage.device.capture(stage.compute) as graph:
                stage.pipeline.fork()
                stage.pipeline.prime()
                self._forward(batch, advance=True)
                stage.pipeline.rejoin()
        except BaseException:
            stage.pipeline.aborted()
            raise
        return _Captured(graph, batch)

    def _keep(self, stage: Stage, key: Hashable, captured: _Captured) -> None:
        if len(self._graphs) >= MAX_GRAPHS:
            stage.device.synchronize(stage.compute, "drop graphs")
            self._drop_graphs(stage)
        self._graphs[key] = captured

    def _drop_graphs(self, stage: Stage) -> None:
        """Destroy captured graphs; the caller has waited for their last launch (H16)."""
        for old in self._graphs.values():
            stage.device.drop_graph(old.graph)
        self._graphs.clear()
        self._seen.clear()

    # ------------------------------------------------------------------- details
    def _batch(self, groups: tuple[Group, ...], outputs: tuple[int, ...]) -> Batch:
        """The one Batch of this shape: captured graphs hold on to it."""
        key = (groups, outputs)
        if key not in self._batches:
            self._batches[key] = Batch(groups, outputs, unified=self.settings.unified)
        return self._batches[key]

    def _upload(self, batch: Batch, rows: Sequence[Row], tokens: Tokens | None) -> None:
        ends = [g.start + g.size - 1 for g in batch.groups]
        for stage in self.stages[:-1]:  # which may still be copying the last stage's state
            self._behind(self.stages[-1], stage)
        for upload in self._uploads:
            upload.rows(rows, tokens, ends)

    def _feed(
        self,
        batch: Batch,
        rows: Sequence[Row],
        t: int,
        feed: Mapping[int, int],
        teacher: dict[int, Sequence[int]] | None,
    ) -> None:
        """Tokens come from the caller at first, then from whoever samples."""
        if t and teacher is not None:
            self._upload(batch, rows, [teacher[r.sequence][t - 1] for r in rows])
        elif t == 0 or self.waits.host_samples:
            self._upload(batch, rows, [feed[r.sequence] for r in rows])
        elif self.settings.unified:
            self._upload(batch, rows, None)

    def _split(self) -> list[range]:
        """Layers of each device: as even as can be, in order."""
        n, parts = self.model.config.n_layers, self.settings.devices
        edges = [n * i // parts for i in range(parts + 1)]
        return [range(a, b) for a, b in itertools.pairwise(edges)]

    def _refuse_recurrent(self, what: str) -> None:
        if "recurrent" in self.model.config.layer_kinds:
            raise UsageError(f"cannot {what}: a recurrent state cannot go back in time")

    def _fill(self, stage: Stage, span: Span) -> None:
        """Zero host or device memory; the caller has drained it."""
        if span.buffer.space == "host":
            target = span.buffer.raw[span.offset : span.end]
            stage.device.host("clear", lambda: target.fill(0), writes=(span,), site="clear")
            return
        zeros = stage.device.alloc("zeros", span.nbytes, "host")
        stage.device.copy(stage.compute, span, zeros.span(), site="clear")
        stage.device.synchronize(stage.compute, "clear")
        stage.device.free(zeros)

    def _zero_state(self, stage: Stage, item: RecurrentLayer, sequence: int) -> None:
        width = item.state.nbytes // self.sequences
        stage.device.synchronize(stage.compute, "clear")
        for home in (item.state, item.home):
            if home is not None:
                self._fill(stage, Span(home.buffer, home.offset + sequence * width, width))

    # ------------------------------------------------------------------- closing
    def close(self) -> None:
        """Wait for everything in flight and give every buffer, event and queue back."""
        if not self.stages:
            return
        try:
            self.drain("close")
            for stage in self.stages:
                self._drop_graphs(stage)
            self._readback.close()
            for upload in self._uploads:
                upload.close()
            for stage in self.stages:
                stage.close()
            for device, event in self._events.values():
                device.drop_event(event)
            self._events.clear()
        finally:
            self._end_devices()

    def _end_devices(self) -> None:
        self.stages = []
        for device in self.devices:
            device.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
