"""Weights in device memory: converted from host arrays, or drawn on the device from a seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kvbench.device.cuda import arguments
from kvbench.device.cuda.driver import Launch, function
from kvbench.device.cuda.source import MACRO, WeightType
from kvbench.device.memory import Buffer
from kvbench.errors import UsageError

if TYPE_CHECKING:
    from kvbench.device.cuda.device import CudaDevice

BLOCK = 32
"""Values per scale of the block types."""

SLAB = 1 << 25
"""Values converted at a time: 128 MiB of float32 on the device while a model loads."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """[n, k] of ``kind`` in device memory, as kernels/matvec.cu lays it out."""

    kind: WeightType
    n: int
    k: int
    data: Buffer
    scale: Buffer | None

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads of it."""
        return self.data.nbytes + (self.scale.nbytes if self.scale else 0)


def data_bytes(kind: WeightType, count: int) -> tuple[int, int]:
    """(bytes of values, bytes of scales) of ``count`` weights."""
    if kind in ("f32", "f16"):
        return count * (4 if kind == "f32" else 2), 0
    return (count if kind == "q8_0" else count // 2), count // BLOCK * 2


def require_shape(name: str, kind: WeightType, k: int) -> None:
    """Raises UsageError when rows of ``k`` weights cannot be read 16 bytes at a time."""
    unit = {"f32": 4, "f16": 8, "q8_0": BLOCK, "q4_0": BLOCK}[kind]
    if k % unit:
        raise UsageError(f"weight {name}: rows of {k} values in {kind} need a multiple of {unit}")


class DeviceWeights(Mapping[str, Matrix | Buffer]):
    """Name to Matrix, or to a float32 Buffer for a norm's gain. ``close`` frees them."""

    def __init__(self, device: CudaDevice, kind: WeightType) -> None:
        self.device, self.kind = device, kind
        self._entries: dict[str, Matrix | Buffer] = {}
        self._slab: Buffer | None = None

    def __getitem__(self, name: str) -> Matrix | Buffer:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Device memory taken."""
        return sum(b.nbytes for b in self.buffers())

    def buffers(self) -> list[Buffer]:
        """Everything allocated for the weights."""
        found: dict[int, Buffer] = {}
        for entry in self._entries.values():
            for buffer in (entry,) if isinstance(entry, Buffer) else (entry.data, entry.scale):
                if buffer is not None:
                    found[buffer.id] = buffer
        return list(found.values())

    def alias(self, name: str, of: str) -> None:
        """``name`` is the same array as ``of`` (a tied head)."""
        self._entries[name] = self._entries[of]

    def upload(self, name: str, array: npt.NDArray[np.float32]) -> None:
        """Convert ``array`` ([n, k], or [d] for a gain) and keep it under ``name``."""
        flat = array.reshape(-1)

        def fill(slab: Any, first: int, count: int) -> None:
            slab[:count].set(np.ascontiguousarray(flat[first : first + count]))

        self._make(name, array.shape, fill)

    def draw(
        self,
        name: str,
        shape: tuple[int, ...],
        key: bytes,
        factor: float,
        *,
        sharp: tuple[int, float] = (0, 1.0),
        offset: float = 0.0,
    ) -> None:
        """Uniform values times ``factor`` plus ``offset`` from a Philox key of 16 bytes.

        The first ``sharp[0]`` values are multiplied by ``sharp[1]`` as well. Bit for bit the
        float32 values of decoder/synthetic.py, before the conversion to ``kind``.
        """
        k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))

        def fill(slab: Any, first: int, count: int) -> None:
            self._draw_slab(slab, (k0, k1), first, count, factor, sharp, offset)

        self._make(name, shape, fill)

    def finish(self) -> None:
        """Wait for the conversions and give the scratch back."""
        self.device.synchronize_all()
        if self._slab is not None:
            self.device.free(self._slab)
            self._slab = None

    def close(self) -> None:
        """Free everything; no kernel that reads a weight may be in flight."""
        for buffer in self.buffers():
            self.device.free(buffer)
        self._entries.clear()

    # ----------------------------------------------------------------- details
    def _make(self, name: str, shape: tuple[int, ...], fill: Any) -> None:
        count = int(np.prod(shape))
        kind: WeightType = "f32" if len(shape) == 1 else self.kind
        require_shape(name, kind, shape[-1])
        values, scales = data_bytes(kind, count)
        data = self.device.alloc(name, values, clear=False)
        scales += scales % 4  # products read them in pairs
        scale = self.device.alloc(f"{name} scales", scales, clear=False) if scales else None
        if self._slab is None:
            self._slab = self.device.alloc("weight scratch", SLAB * 4, clear=False)
        with self.device.current():
            self._convert(kind, count, data, scale, fill)
        self._entries[name] = (
            data if len(shape) == 1 else Matrix(kind, shape[0], shape[1], data, scale)
        )

    def _convert(
        self, kind: WeightType, count: int, data: Buffer, scale: Buffer | None, fill: Any
    ) -> None:
        """Fill the slab piece by piece, and pack each into its place."""
        assert self._slab is not None
        slab = self._slab.raw.view(np.float32)
        pack = function("weights", "pack", WT=MACRO[kind])
        for first in range(0, count, SLAB):
            part = min(SLAB, count - first)
            fill(slab, first, part)
            done, done_scales = data_bytes(kind, first)
            Launch(
                pack,
                (-(-part // 256),),
                (256,),
                arguments.Pack(
                    slab.data.ptr,
                    data.raw.data.ptr + done,
                    scale.raw.data.ptr + done_scales if scale else None,
                    part,
                ),
                overlap=False,
            )(0)

    @staticmethod
    def _draw_slab(
        slab: Any,
        key: tuple[int, int],
        first: int,
        count: int,
        factor: float,
        sharp: tuple[int, float],
        offset: float,
    ) -> None:
        unit = float(np.float32(np.sqrt(12.0) / 65536.0))
        Launch(
            function("weights", "synthesize", WT="F32"),
            (-(-count // (16 * 256)),),
            (256,),
            arguments.Synth(
                slab.data.ptr, *key, first, count, sharp[0], unit, factor, sharp[1], offset
            ),
            overlap=False,
        )(0)
