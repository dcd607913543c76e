"""Products of prefill tiles: scratch, how a product is cut into blocks, and its three launches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvbench.device.cuda import arguments
from kvbench.device.cuda.device import CudaDevice
from kvbench.device.cuda.driver import Launch, function
from kvbench.device.cuda.products import Product, address, pointers
from kvbench.device.cuda.source import MACRO
from kvbench.device.cuda.weights import Matrix
from kvbench.device.kernels import TILE
from kvbench.device.memory import Buffer

# What tile.cu calls ROWS, DEPTH, STAGES and WARPS, and the rest of its grids.
ROWS, DEPTH, STAGES, THREADS = 128, 64, 3, 256
SPLIT_THREADS = 512
COLUMNS, ROW_BLOCKS = 32, 8

BLOCKS = 264
"""Blocks that a product is cut into, if it has fewer rows of W: two for each of 132
multiprocessors. A constant and not this GPU's number, since a row's bits depend on the slices."""

LEAST_STAGES = 4
"""Stages of ``DEPTH`` values in a slice: a shorter one would do little but fill its pipeline."""


def stages(k: int) -> int:
    """Pieces of ``DEPTH`` values of K, the last one padded."""
    return -(-k // DEPTH)


def slices(n: int, k: int) -> int:
    """Slices of K whose sums are added at the end: enough blocks for matrices of few rows."""
    return max(1, min(BLOCKS // -(-n // ROWS), stages(k) // LEAST_STAGES))


class TileProducts:
    """Scratch for the products of ``matrices``, one at a time, and their launches."""

    def __init__(self, device: CudaDevice, matrices: Iterable[Matrix]) -> None:
        shapes = [(m.n, m.k) for m in matrices]
        depth = max(stages(k) for _, k in shapes) * DEPTH
        width = max(slices(n, k) * n for n, k in shapes)
        self.split = device.alloc("tile split", TILE * depth * 4, clear=False)
        self.factors = device.alloc("tile factors", TILE * 4, clear=False)
        self.sums = device.alloc("tile sums", TILE * width * 4, clear=False)

    def buffers(self) -> list[Buffer]:
        """Everything allocated here."""
        return [self.split, self.factors, self.sums]

    def launches(self, p: Product, rows: int) -> Iterator[Launch]:
        """One product of a tile of ``rows``."""
        n, k, kind = p.weight.n, p.weight.k, MACRO[p.weight.kind]
        cut = slices(n, k)
        given = arguments.Tile(
            *pointers(p.weight), p.x, p.gain, p.y, p.memory, p.state,
            address(self.split), address(self.factors), address(self.sums),
            p.ldx, p.ldy, k, n, rows, cut, p.mode_number(), p.eps,
        )  # fmt: skip
        yield Launch(function("tile", "tile_split", WT=kind), (TILE,), (SPLIT_THREADS,), given)
        yield Launch(
            function("tile", "tile_multiply", WT=kind),
            (-(-n // ROWS), cut),
            (THREADS,),
            given,
            shared=stage_bytes(kind) * STAGES,
        )
        # A recurrent tile's rows follow each other, so that one block has all of a column.
        recurrent = p.mode == "recurrent"
        width = n // 2 if recurrent or p.mode == "gated" else n
        last = function("tile", "tile_recur" if recurrent else "tile_finish", WT=kind)
        yield Launch(
            last, (-(-width // COLUMNS), 1 if recurrent else ROW_BLOCKS), (THREADS,), given
        )


def stage_bytes(kind: str) -> int:
    """Shared memory of a stage: the rows of W, and the tile in two halves."""
    return ROWS * DEPTH * {"F16": 4, "Q8": 2, "Q4": 1}[kind] // 2 + TILE * DEPTH * 4
