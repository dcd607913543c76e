"""One graph over all devices: plan it, then queue its operations one by one or as one launch.

The order in which a stage's transport is told what happens is all here and in Stage:
prepare, prime, (stored, window) for each layer, end. Devices follow one another by events.
"""

from __future__ import annotations

import itertools
from functools import partial

from kvbench.decoder.captures import Captures
from kvbench.decoder.settings import DecoderSettings
from kvbench.decoder.stage import Stage
from kvbench.decoder.waits import AFTER_GRAPH, BEFORE_GRAPH, WaitPattern
from kvbench.device.api import Device, Event
from kvbench.device.kernels import Batch
from kvbench.transport.pipeline import Next
from kvbench.transport.window import Geometry


class Forward:
    """Runs batches through ``stages``, first to last."""

    def __init__(self, stages: list[Stage], waits: WaitPattern, settings: DecoderSettings) -> None:
        """Opens one event for each ordered pair of devices, before any work (T11)."""
        self.stages, self.waits = stages, waits
        self._captures: Captures | None = None
        if settings.graphs:
            (stage,) = stages
            work = partial(self._layers, advance=True)
            self._captures = Captures(stage, work, partial(self._issue, advance=True))
        self._events: dict[str, tuple[Device, Event]] = {}
        for before, stage in itertools.permutations(stages, 2):
            name = f"{before.device.name}>{stage.device.name}"
            self._events[name] = (before.device, before.device.event(name))

    def graph(self, batch: Batch, geometry: Geometry, after: Next | None, *, advance: bool) -> None:
        """Queue one graph. ``after``: what is known of the next one, to look ahead into it.

        ``advance``: the chosen tokens become the next graph's inputs on the device.
        """
        self.waits.at(BEFORE_GRAPH)
        if self._captures is not None and advance:
            self._captures.run(batch, geometry, after)
        else:
            for stage in self.stages:
                stage.pipeline.prepare(geometry, after)
            self._issue(batch, advance=advance)
        self.waits.at(AFTER_GRAPH)

    def before_upload(self) -> None:
        """Uploads to the last stage follow the copies that others still make of its state."""
        for stage in self.stages[:-1]:
            self._behind(self.stages[-1], stage)

    def close(self) -> None:
        """Give graphs and events back; the caller has drained every stage."""
        if self._captures is not None:
            self._captures.drop()
        for device, event in self._events.values():
            device.drop_event(event)
        self._events.clear()

    def _issue(self, batch: Batch, *, advance: bool) -> None:
        """Queue every operation of the prepared graph, one by one."""
        for stage in self.stages:
            stage.pipeline.prime()
        self._layers(batch, advance=advance)
        for stage in self.stages:
            stage.pipeline.end()

    def _layers(self, batch: Batch, *, advance: bool) -> None:
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
