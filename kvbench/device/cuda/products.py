"""Matrix-vector products for a few rows: how a product is cut into blocks."""

from __future__ import annotations

from kvbench.device.cuda import arguments
from kvbench.device.cuda.driver import Launch, function, multiprocessors
from kvbench.device.cuda.source import MACRO, ROW_VARIANTS
from kvbench.device.cuda.weights import Matrix
from kvbench.device.memory import Buffer
from kvbench.errors import DeviceError

ONE_ROW = (8, 2, 8, 3)
"""Products of one or two rows: warps of a block, rows of W per warp, loads in flight per lane, and
blocks that fit on a multiprocessor (the R1_ macros of matvec.cu)."""

BLOCKS_PER_SM = 3
"""Blocks launched per multiprocessor: each stays for all its rows of W and brings x in once."""

OVERLAP_PRODUCTS = False
"""Whether a product may begin beside the end of the kernel before it: its blocks then land unevenly
on the multiprocessors (docs/LOG.md)."""


def address(buffer: Buffer, offset: int = 0) -> int:
    """Where a kernel finds the buffer: device memory, or host memory mapped by pinning."""
    if buffer.space == "device":
        return int(buffer.raw.data.ptr) + offset
    if not buffer.pinned:
        raise DeviceError(f"{buffer.name} is not pinned: no kernel can reach it")
    return int(buffer.raw.ctypes.data) + offset


def product_launch(
    weight: Matrix,
    rows: int,
    x: int,
    ldx: int,
    y: int,
    ldy: int,
    *,
    mode: str = "plain",
    gain: int | None = None,
    memory: int | None = None,
    state: int | None = None,
    eps: float = 0.0,
) -> Launch:
    """One matrix-vector product for 1 to 16 rows; pointers, and strides in floats."""
    variant = next(v for v in ROW_VARIANTS if v >= rows)
    blocked = weight.kind in ("q8_0", "q4_0")
    defines: dict[str, object] = {"WT": MACRO[weight.kind], "ROWS": variant}
    warps, per_warp = 8, 2 if blocked and variant > 8 else 4
    if variant < 4:
        warps, per_warp, loads, least = ONE_ROW
        defines |= {"R1_WARPS": warps, "R1_NR": per_warp, "R1_LOADS": loads, "R1_MINB": least}
    chunk = 32 * {"f32": 4, "f16": 8, "q8_0": 16, "q4_0": 32}[weight.kind]
    limit = (32768 if variant < 4 else 16384) // variant
    tile = min(limit, -(-weight.k // chunk) * chunk)
    groups = -(-weight.n // (warps * per_warp))
    # Where x fits at once, a block per multiprocessor stays for all its rows and leaves room for
    # the next kernel's blocks, which fetch their first weights meanwhile.
    blocks = groups if weight.k > limit else min(groups, multiprocessors() * BLOCKS_PER_SM)
    return Launch(
        function("matvec", f"matvec_{mode}", **defines),
        (blocks,),
        (warps * 32,),
        arguments.Mat(
            *pointers(weight),
            x,
            gain,
            y,
            memory,
            state,
            ldx,
            ldy,
            weight.k,
            weight.n,
            rows,
            eps,
        ),
        shared=tile * variant * 4,
        overlap=OVERLAP_PRODUCTS,
    )


def pointers(matrix: Matrix) -> tuple[int, int | None]:
    return address(matrix.data), address(matrix.scale) if matrix.scale else None
