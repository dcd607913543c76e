"""The kernel files of this package, and which variants of each are compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Literal

KvType = Literal["f16", "q8_0", "q4_0"]
WeightType = Literal["f16", "q8_0", "q4_0", "f32"]

FAST_HEADS = (64, 128, 256)
"""Head sizes that attend.cu multiplies on tensor cores, and whose new rows it can make itself."""

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
    early: int
    """Of the pieces under way, those ordered before x is there."""

    def ring_bytes(self, weights: str) -> int:
        """Shared memory of what is read ahead; a scale lies beside each 16 bytes of a lane."""
        loads = self.warps * self.per_warp * self.depth * self.piece
        return loads * 32 * (20 if weights in BLOCKED else 16)

    def declared_bytes(self, rows: int) -> int:
        """What matvec.cu declares: sums of squares, factors, results and barriers; whole lines."""
        declared = 4 * rows * (512 + self.warps * (1 + self.per_warp)) + 8 * self.warps * self.depth
        return -(-declared // 128) * 128

    def shared_bytes(self, rows: int, k: int, weights: str) -> int:
        """Dynamic shared memory: a tile of x (float32), then what is read ahead."""
        step = self.step(weights)
        tile = min(self.held(weights), -(-k // step) * step)
        return tile * rows * 4 + self.ring_bytes(weights)

    def held(self, weights: str) -> int:
        """Values of each row of x that are worked on at once, at most."""
        return self.tile // self.step(weights) * self.step(weights)

    def step(self, weights: str) -> int:
        """Values of a piece."""
        return self.piece * 32 * LANE_VALUES[weights]

    def fitted(self, rows: int, weights: str, room: int) -> Cut | None:
        """The same with no larger a tile than ``room`` bytes allow; None if not a piece fits."""
        left = (room - self.declared_bytes(rows) - self.ring_bytes(weights)) // (4 * rows)
        tile = min(left, self.tile) // self.step(weights) * self.step(weights)
        return replace(self, tile=tile) if tile > 0 else None

    def defines(self) -> dict[str, object]:
        """As matvec.cu names them."""
        return {
            "WARPS": self.warps, "NR": self.per_warp, "DEPTH": self.depth, "PIECE": self.piece,
            "TILE": self.tile, "EARLY": self.early,
        }  # fmt: skip


CUTS = {
    1: (Cut(8, 2, 2, 8, 20480, 1), Cut(8, 2, 3, 4, 28672, 1)),
    2: (Cut(8, 2, 3, 4, 14336, 3),),
    4: (Cut(16, 2, 2, 2, 8192, 2),),
    8: (Cut(8, 4, 2, 2, 4096, 2),),
    16: (Cut(8, 4, 2, 2, 2048, 2),),
}
"""By rows, as measured (tests/cuda/bench_products.py): the first that holds x as a whole is taken,
or the one that holds most. A block of one row takes more than half of a multiprocessor's shared
memory: blocks of which two fit can land unevenly (docs/LOG.md)."""

BLOCKED_CUTS = {
    1: (Cut(16, 2, 2, 4, 16384, 2), Cut(16, 2, 2, 2, 28672, 2)),
    2: (Cut(16, 2, 2, 2, 12288, 2),),
    4: (Cut(16, 2, 2, 2, 8192, 2),),
    8: (Cut(8, 4, 2, 2, 4096, 2),),
    16: (Cut(8, 4, 1, 2, 2048, 1),),
}
"""The same for weights with a scale per 32 values, which are read ahead too."""

SMALL_CUTS = {
    1: Cut(8, 2, 3, 2, 8192, 3),
    2: Cut(8, 2, 3, 2, 4096, 3),
    4: Cut(8, 2, 2, 2, 2048, 2),
    8: Cut(8, 2, 2, 1, 1024, 2),
    16: Cut(8, 2, 2, 1, 1024, 2),
}
"""For a GPU with less shared memory than those are for; not measured."""

SHARED = 227 << 10
"""Shared memory that a block can have on the GPU of the measured cuts."""


def cuts_of(weights: str, room: int = SHARED) -> dict[int, tuple[Cut, ...]]:
    """The variants of ``rows`` that ``room`` bytes of shared memory allow, and how each is cut.

    Which one multiplies a row, and its cut, changes none of the row's bits (matvec.cu).
    """
    measured = BLOCKED_CUTS if weights in BLOCKED else CUTS
    found = {}
    for rows in ROW_VARIANTS:
        fitted = [cut.fitted(rows, weights, room) for cut in measured[rows]]
        if fitted != list(measured[rows]):
            fitted.append(SMALL_CUTS[rows].fitted(rows, weights, room))
        found[rows] = tuple(cut for cut in fitted if cut is not None)
    return {rows: cuts for rows, cuts in found.items() if cuts}


def cut_for(k: int, weights: str, cuts: Sequence[Cut]) -> Cut:
    """The first of ``cuts`` that holds ``k`` values of a row, or the one that holds most."""
    whole = (cut for cut in cuts if cut.held(weights) >= k)
    return next(whole, None) or max(cuts, key=lambda cut: cut.held(weights))


Defines = tuple[tuple[str, str], ...]


@cache
def source(name: str) -> str:
    """The text of ``kernels/<name>.cu``, ready to compile: what it shares with others in front."""
    folder = files("kvbench.device.cuda") / "kernels"
    shared = ("common.cuh", "new_rows.cuh") if name in ("rows", "attend") else ("common.cuh",)
    return "\n".join((folder / part).read_text() for part in (*shared, f"{name}.cu"))


def options(defines: Defines) -> tuple[str, ...]:
    """Compiler options of a variant. Contraction is left to explicit fmaf: bits are fixed."""
    return ("-std=c++17", "-fmad=false", *(f"-D{key}={value}" for key, value in defines))


def sample_variants(room: int = SHARED) -> Iterator[tuple[str, Defines]]:
    """(file, defines) of every kind of variant, for a compiler without a GPU (the CI gate).

    ``room``: shared memory of a block, which decides how products are cut.
    """
    for weights in MACRO.values():
        yield "tokens", (("WT", weights),)
        yield "weights", (("WT", weights),)
        for rows, cuts in cuts_of(weights, room).items():
            for cut in cuts:
                shape = ((name, str(value)) for name, value in cut.defines().items())
                yield "matvec", (("WT", weights), ("ROWS", str(rows)), *shape)
        if weights != "F32":
            yield "tile", (("WT", weights),)
    for kv in ("F16", "Q8", "Q4"):
        yield "rows", (("KV", kv),)
        for head_dim, group in ((64, 3), (128, 4), (256, 6), (16, 2), (32, 4), (128, 8), (64, 12)):
            for new in ("0", "1") if head_dim in FAST_HEADS else ("0",):
                yield "attend", (("KV", kv), ("HD", str(head_dim)), ("G", str(group)), ("NEW", new))
