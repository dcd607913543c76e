"""An engine: a model on its devices with one KV cache. What it is made of, and its end.

    loops.py      prompts, greedy steps, several tokens at once: which batch comes next
    forward.py    one graph: planned, then issued over all devices
    captures.py   the same graph as one launch
    stage.py      one device's layers: where rows are stored and windows read
    rewrite.py    history rolled back, emptied, shifted

When a byte is copied, and what makes that safe: kvbench/transport/pipeline.py.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from kvbench.decoder import arithmetic
from kvbench.decoder.cache import KVCache
from kvbench.decoder.devices import open_devices
from kvbench.decoder.forward import Forward
from kvbench.decoder.loops import Loops
from kvbench.decoder.model import Model
from kvbench.decoder.readback import Readback
from kvbench.decoder.rewrite import History
from kvbench.decoder.settings import DecoderSettings
from kvbench.decoder.stage import Stage
from kvbench.decoder.upload import Upload
from kvbench.decoder.waits import WaitPattern
from kvbench.device.api import Device
from kvbench.device.cpu.explorer import Picker
from kvbench.device.kernels import MAX_DECODE_ROWS
from kvbench.device.kvtypes import KVType, kv_type
from kvbench.device.oplog import OpLog
from kvbench.errors import UsageError
from kvbench.transport.hooks import TransportHooks


@dataclass(slots=True)
class Engine(Loops):
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
    _history: History = field(init=False)

    def __post_init__(self) -> None:
        arithmetic.pin()
        self._check()
        config, settings = self.model.config, self.settings
        codec = kv_type(settings.kv_type, n_kv_heads=config.n_kv_heads, head_dim=config.head_dim)
        multiple = settings.row_multiple
        rows = -(-self.capacity // multiple) * multiple
        self.cache = KVCache(
            self.sequences, rows, codec.pitch, unified=settings.unified, row_multiple=multiple
        )
        self.stages, self._batches = [], {}
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
            self._open(codec)
        except BaseException:
            self._end_devices()
            raise

    def _check(self) -> None:
        config = self.model.config
        if not 1 <= self.sequences <= MAX_DECODE_ROWS:
            raise UsageError(f"sequences = {self.sequences}: from 1 to {MAX_DECODE_ROWS}")
        if self.capacity > config.context:
            raise UsageError(
                f"{self.capacity} positions a sequence exceed the context of {config.name}, "
                f"{config.context}"
            )
        if self.settings.devices > config.n_layers:
            raise UsageError(f"devices = {self.settings.devices}: at most {config.n_layers} layers")

    def _open(self, codec: KVType) -> None:
        model, settings = self.model, self.settings
        for device, layers in zip(self.devices, self._split(), strict=True):
            self.stages.append(
                Stage(
                    device,
                    model.config,
                    model.weights,
                    self.cache,
                    codec,
                    settings,
                    self.hooks,
                    layers,
                )
            )
        self._history = History(self.cache, self.stages)
        self._forward = Forward(self.stages, self.waits, settings)
        self._readback = Readback(self.stages[-1], self.waits, self._lag + 1)
        self._uploads = [Upload(s, self.cache, self.waits, settings.lag + 2) for s in self.stages]

    def _split(self) -> list[range]:
        """Layers of each device: as even as can be, in order."""
        n, parts = self.model.config.n_layers, self.settings.devices
        edges = [n * i // parts for i in range(parts + 1)]
        return [range(a, b) for a, b in itertools.pairwise(edges)]

    # --------------------------------------------------------- history rewritten
    def drain(self, reason: str) -> None:
        """Wait for all readers and writers of the cache; a look-ahead in flight is dropped."""
        self._history.drain(reason)

    def truncate(self, sequence: int, length: int) -> None:
        """Roll a sequence back to ``length`` positions."""
        self._history.truncate(sequence, length)

    def reset(self, sequence: int) -> None:
        """Empty one sequence while others go on."""
        self._history.reset(sequence)

    def clear(self) -> None:
        """Empty all sequences and overwrite the memory (T17)."""
        self._history.clear()

    def shift(self, sequence: int, keep: int, discard: int) -> None:
        """Drop positions [keep, keep + discard) of a sequence and close up (T20)."""
        self._history.shift(sequence, keep, discard)

    # ------------------------------------------------------------------- closing
    def close(self) -> None:
        """Wait for everything in flight and give every buffer, event and queue back."""
        if not self.stages:
            return
        try:
            self.drain("close")
            self._forward.close()
            self._readback.close()
            for upload in self._uploads:
                upload.close()
            for stage in self.stages:
                stage.close()
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
