"""The kernel files of this package, and which variants of each are compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

KvType = Literal["f16", "q8_0", "q4_0"]
WeightType = Literal["f16", "q8_0", "q4_0", "f32"]

MACRO = {"f16": "F16", "q8_0": "Q8", "q4_0": "Q4", "f32": "F32"}
"""The name that kernel files give a type."""

ROW_VARIANTS = (1, 2, 4, 8, 16)
"""Batch sizes matvec.cu is compiled for; a batch takes the next larger one."""


BLOCKED = ("Q8", "Q4")
LANE_VALUES = {"F32": 4, "F16": 8, "Q8": 16, "Q4": 32}
"""Weights in 16 bytes."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a block takes W: warps, rows of it per warp, and what is under way of each row."""

    warps: int
    per_warp: int
    depth: int
    """Pieces of a row under way."""
    piece: int
    """Loads of 512 bytes, 16 a lane, that make a piece."""
    tile: int
    """Values of each row of x in shared memory at once, at most."""

    def shared_bytes(self, rows: int, k: int, weights: str) -> int:
        """Dynamic shared memory: a tile of x (float32), then what is read ahead."""
        step = self.piece * 32 * LANE_VALUES[weights]
        held = min(self.tile // step, -(-k // step)) * step
        per_lane = 20 if weights in BLOCKED else 16  # a scale beside each 16 bytes
        loads = self.warps * self.per_warp * self.depth * self.piece
        return held * rows * 4 + loads * 32 * per_lane

    def defines(self) -> dict[str, object]:
        """As matvec.cu names them."""
        return {
            "WARPS": self.warps, "NR": self.per_warp, "DEPTH": self.depth, "PIECE": self.piece,
            "TILE": self.tile,
        }  # fmt: skip


CUTS = {
    1: Cut(8, 2, 3, 4, 28672),
    2: Cut(8, 2, 3, 4, 14336),
    4: Cut(16, 2, 2, 2, 4096),
    8: Cut(8, 4, 2, 2, 2048),
    16: Cut(8, 4, 2, 2, 1024),
}
"""By rows, as measured (tests/cuda/bench_products.py). A block of one row takes more than half of a
multiprocessor's shared memory: blocks of which two fit can land unevenly (docs/LOG.md)."""

BLOCKED_CUTS = CUTS | {
    1: Cut(8, 2, 3, 4, 20480),
    2: Cut(8, 2, 3, 4, 8192),
    16: Cut(8, 2, 2, 1, 1024),
}
"""The same for weights with a scale per 32 values, which are read ahead too."""


def cut_of(rows: int, weights: str) -> Cut:
    """The cut for a variant of ``rows``; ``weights``: their type as kernel files name it."""
    return (BLOCKED_CUTS if weights in BLOCKED else CUTS)[rows]


Defines = tuple[tuple[str, str], ...]


@cache
def source(name: str) -> str:
    """The text of ``kernels/<name>.cu``, ready to compile: common.cuh in front."""
    folder = files("kvbench.device.cuda") / "kernels"
    return f"{(folder / 'common.cuh').read_text()}\n{(folder / f'{name}.cu').read_text()}"


def options(defines: Defines) -> tuple[str, ...]:
    """Compiler options of a variant. Contraction is left to explicit fmaf: bits are fixed."""
    return ("-std=c++17", "-fmad=false", *(f"-D{key}={value}" for key, value in defines))


def sample_variants() -> Iterator[tuple[str, Defines]]:
    """(file, defines) of every kind of variant, for a compiler without a GPU (the CI gate)."""
    for weights in MACRO.values():
        yield "tokens", (("WT", weights),)
        yield "weights", (("WT", weights),)
        for rows in ROW_VARIANTS:
            cut = cut_of(rows, weights).defines()
            shape = ((name, str(value)) for name, value in cut.items())
            yield "matvec", (("WT", weights), ("ROWS", str(rows)), *shape)
        if weights != "F32":
            yield "tile", (("WT", weights),)
    for kv in ("F16", "Q8", "Q4"):
        yield "rows", (("KV", kv),)
        for head_dim, group in ((64, 3), (128, 4), (256, 6), (16, 2), (128, 8)):
            yield "attend", (("KV", kv), ("HD", str(head_dim)), ("G", str(group)))
