"""The host reads behind the device: a small ring of pinned buffers for logits, tokens and sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvbench.decoder.stage import Stage
from kvbench.decoder.waits import LOGITS, SAMPLER, WaitPattern
from kvbench.device.api import Event
from kvbench.device.kernels import MAX_DECODE_ROWS
from kvbench.device.kvtypes import F32
from kvbench.device.memory import Buffer


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step yielded, one entry per output row; views that are valid until the next read."""

    index: int
    tokens: npt.NDArray[np.int32]
    logits: F32
    """[rows, vocabulary] float32."""
    sums: npt.NDArray[np.uint64]
    """Audit sums per output row, 0 outside audit mode."""


@dataclass(slots=True)
class _Slot:
    logits: Buffer
    chosen: Buffer
    sums: Buffer
    event: Event
    index: int = -1
    rows: tuple[int, ...] = ()


class Readback:
    """``depth`` steps may be in flight between ``push`` and ``pull``."""

    def __init__(self, stage: Stage, waits: WaitPattern, depth: int) -> None:
        self.stage, self.device, self.waits = stage, stage.device, waits
        vocabulary = stage.kernels.shapes.vocab
        self._vocabulary = vocabulary
        self._slots = [
            _Slot(
                self.device.alloc(f"logits{i}", MAX_DECODE_ROWS * vocabulary * 4, "host"),
                self.device.alloc(f"chosen{i}", MAX_DECODE_ROWS * 4, "host"),
                self.device.alloc(f"sums{i}", stage.kernels.sums.nbytes, "host"),
                self.device.event(f"read{i}"),
            )
            for i in range(depth)
        ]

    def push(self, index: int, rows: tuple[int, ...]) -> None:
        """Queue the copies of step ``index``'s results; ``rows`` are its output rows."""
        slot = self._slots[index % len(self._slots)]
        kernels, n = self.stage.kernels, len(rows)
        for target, source, nbytes in (
            (slot.logits, kernels.logits, n * self._vocabulary * 4),
            (slot.chosen, kernels.chosen, n * 4),
            (slot.sums, kernels.sums, kernels.sums.nbytes),
        ):
            self.device.copy(
                self.stage.compute, target.span(0, nbytes), source.span(0, nbytes), site="read"
            )
        if not self.waits.host_samples:
            self.device.record(self.stage.compute, slot.event)
        slot.index, slot.rows = index, rows

    def pull(self, index: int) -> StepOutput:
        """Wait for step ``index`` and return its results.

        Where the host samples, the wait is that of the getter of the first row's logits.
        """
        slot = self._slots[index % len(self._slots)]
        assert slot.index == index
        if self.waits.host_samples:
            self.waits.at(LOGITS)
        else:
            self.device.synchronize(slot.event, "read")
        n = len(slot.rows)

        def take() -> StepOutput:
            logits = slot.logits.raw.view(np.float32)[: n * self._vocabulary]
            sums = slot.sums.raw.view(np.uint64)[list(slot.rows)]
            return StepOutput(
                index, slot.chosen.raw.view(np.int32)[:n], logits.reshape(n, -1), sums
            )

        reads = (
            slot.logits.span(0, n * self._vocabulary * 4),
            slot.chosen.span(0, n * 4),
            slot.sums.span(),
        )
        output: StepOutput = self.device.host(f"read {index}", take, reads=reads, site="read")
        return output

    def sample(self, output: StepOutput, row: int) -> int:
        """The greedy token of one output row: the host's arg-max, or the device's."""
        if not self.waits.host_samples:
            return int(output.tokens[row])
        if row:
            self.waits.at(LOGITS)
        self.waits.at(SAMPLER)
        return int(np.argmax(output.logits[row]))

    def close(self) -> None:
        """Free the ring; the caller has pulled or waited for everything."""
        for slot in self._slots:
            for buffer in (slot.logits, slot.chosen, slot.sums):
                self.device.free(buffer)
            self.device.drop_event(slot.event)
        self._slots.clear()
