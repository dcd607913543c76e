"""One device's part of the model: its layers, kernels, storage and transport (T11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvbench.decoder.cache import KVCache
from kvbench.decoder.config import ModelConfig
from kvbench.decoder.devices import open_kernels
from kvbench.decoder.settings import DecoderSettings
from kvbench.device.api import Device
from kvbench.device.kernels import Batch
from kvbench.device.kvtypes import KVType
from kvbench.device.memory import Buffer, Space, Span
from kvbench.device.ops import Op
from kvbench.device.ranges import ranged
from kvbench.transport.hooks import TransportHooks
from kvbench.transport.pipeline import Pipeline
from kvbench.transport.window import Storage, resident_view


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """Where one attention layer keeps its rows. ``split`` −1: read in place, not transported."""

    layer: int
    storage: Storage
    split: int


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """One recurrent layer's state [sequences, d_model] float32, and its home if offloaded (T3)."""

    layer: int
    state: Span
    home: Span | None


class Stage:
    """The layers ``layers`` of a model on one device, from hidden state to hidden state."""

    def __init__(
        self,
        device: Device,
        config: ModelConfig,
        weights: Mapping[str, Any],
        cache: KVCache,
        codec: KVType,
        settings: DecoderSettings,
        hooks: TransportHooks,
        layers: Sequence[int],
    ) -> None:
        self.device, self.cache, self.settings = device, cache, settings
        self.compute = device.queue("compute")
        self.kernels = open_kernels(
            device,
            config,
            weights,
            codec,
            full_rows=cache.rows,
            audit=settings.audit,
            weight_type=settings.weight_type,
            layers=layers,
        )
        if cache.unified:
            self.kernels.with_cells()
        self._owned: list[Buffer] = []
        self._state_window: Buffer | None = None
        self._input: tuple[Buffer, Buffer] | None = None
        if settings.graph_input_kib:
            size = settings.graph_input_kib << 10
            self._input = (self._own("input", size, "host"), self._own("input", size, "device"))
        self.layers: list[AttentionLayer | RecurrentLayer] = []
        attention = [i for i, kind in enumerate(config.layer_kinds) if kind == "attention"]
        kept = set(attention if settings.resident else attention[: settings.device_layers])
        split = 0
        for layer in layers:
            if config.layer_kinds[layer] == "recurrent":
                self.layers.append(self._recurrent(layer, config.d_model))
                continue
            storage = self._storage(layer, resident=layer in kept)
            in_place = layer in kept or settings.direct
            self.layers.append(AttentionLayer(layer, storage, -1 if in_place else split))
            split += not in_place
        self.pipeline = Pipeline(
            device,
            self.compute,
            [a.storage for a in self.layers if isinstance(a, AttentionLayer) and a.split >= 0],
            cache.prefix,
            settings.transport(),
            hooks,
            baked=settings.graphs,
        )

    def feed_input(self) -> None:
        """Copy the graph's extra input, if there is one (T21)."""
        if self._input is not None:
            home, target = self._input
            self.device.copy(self.compute, target.span(), home.span(), site="input")

    def run_layers(self, batch: Batch) -> None:
        """Queue every layer of this stage for ``batch``."""
        for item in self.layers:
            if isinstance(item, RecurrentLayer):
                self._recur(item, batch)
            elif item.split < 0:
                self._attend_in_place(item, batch)
            else:
                with ranged(f"split {item.split}"):
                    self._attend(item, batch)
            self._submit(self.kernels.mlp(item.layer, batch))

    def _attend(self, item: AttentionLayer, batch: Batch) -> None:
        """A transported layer. The store follows *ready* where the tail is written on the device:
        a delivery rounded up may read the row that is about to be stored (H4, H5)."""
        kernels, place = self.kernels, self.settings.tail == "device"
        self._submit(kernels.attn_in(item.layer, batch, place=place))
        if not place:
            self._store(item, batch)
        with self.pipeline.window(item.split) as view:
            where = {"split": item.split, "slot": self.pipeline.slot(item.split)}
            if place:
                self._submit(*kernels.place_and_attend(item.layer, batch, view, **where))
                self._store(item, batch)
            else:
                self._submit(kernels.attend(item.layer, batch, view, **where))

    def _store(self, item: AttentionLayer, batch: Batch) -> None:
        home = resident_view(item.storage)
        self._submit(self.kernels.write_rows(batch, home, site="store", split=item.split))
        self.pipeline.stored(item.split)

    def _attend_in_place(self, item: AttentionLayer, batch: Batch) -> None:
        view = resident_view(item.storage)
        self._submit(self.kernels.attn_in(item.layer, batch, place=True))
        self._submit(*self.kernels.place_and_attend(item.layer, batch, view))

    def _recur(self, item: RecurrentLayer, batch: Batch) -> None:
        if item.home is not None:
            self.device.copy(self.compute, item.state, item.home, site="state")
        self._submit(self.kernels.recur(item.layer, batch, item.state))
        if item.home is not None:
            self.device.copy(self.compute, item.home, item.state, site="state_store")

    def _submit(self, *ops: Op) -> None:
        for op in ops:
            self.device.submit(self.compute, op)

    # ------------------------------------------------------------------ memory
    def _storage(self, layer: int, *, resident: bool) -> Storage:
        cache = self.cache
        nbytes = 2 * cache.streams * cache.rows * cache.pitch
        buffer = self._own(f"kv{layer}", nbytes, "device" if resident else "host")
        storage = Storage(buffer, cache.streams, cache.rows, cache.pitch)
        cache.storages.append(storage)
        return storage

    def _recurrent(self, layer: int, d_model: int) -> RecurrentLayer:
        """Offloaded states share one device buffer: each is brought along when it is needed."""
        nbytes = self.cache.sequences * d_model * 4
        if not self.settings.offload_state:
            return RecurrentLayer(layer, self._own(f"state{layer}", nbytes, "device").span(), None)
        if self._state_window is None:
            self._state_window = self._own("state_window", nbytes, "device")
        home = self._own(f"home{layer}", nbytes, "host")
        return RecurrentLayer(layer, self._state_window.span(), home.span())

    def _own(self, name: str, nbytes: int, space: Space) -> Buffer:
        buffer = self.device.alloc(name, nbytes, space, pinned=self.settings.pinned)
        self._owned.append(buffer)
        return buffer

    def close(self) -> None:
        """Give this stage's memory back; the caller has drained it."""
        self.pipeline.close()
        for buffer in (*self._owned, *self.kernels.buffers()):
            self.device.free(buffer)
        self._owned.clear()
