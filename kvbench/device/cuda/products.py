"""Matrix-vector products for a few rows: how a product is cut into blocks."""

from __future__ import annotations

from kvbench.device.cuda import arguments
from kvbench.device.cuda.driver import Launch, function, multiprocessors, shared_memory
from kvbench.device.cuda.source import MACRO, cuts_of
from kvbench.device.cuda.weights import Matrix
from kvbench.device.memory import Buffer
from kvbench.errors import DeviceError


def address(buffer: Buffer, offset: int = 0) -> int:
    """Where a kernel finds the buffer: device memory, or host memory mapped by pinning."""
    if buffer.space == "device":
        return int(buffer.raw.data.ptr) + offset
    if not buffer.pinned:
        raise DeviceError(f"{buffer.name} is not pinned: no kernel can reach it")
    return int(buffer.raw.ctypes.data) + offset


def most_rows(weight: Matrix) -> int:
    """The most rows of x that one product takes: 16, or 8 where shared memory is short."""
    return max(cuts_of(MACRO[weight.kind], shared_memory()))


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
    """One matrix-vector product for up to ``most_rows``; pointers, and strides in floats."""
    kind = MACRO[weight.kind]
    cuts = cuts_of(kind, shared_memory())
    variant = next(v for v in cuts if v >= rows)
    cut = cuts[variant]
    # A block per multiprocessor stays for all its rows of W and brings x in once. As it ends, the
    # next kernel's block takes its place and reads ahead while others still run.
    blocks = min(-(-weight.n // (cut.warps * cut.per_warp)), multiprocessors())
    return Launch(
        function(
            "matvec", f"matvec_{mode}",
            WT=kind, ROWS=variant, **cut.defines(),
        ),
        (blocks,),
        (cut.warps * 32,),
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
        shared=cut.shared_bytes(variant, weight.k, kind),
    )  # fmt: skip


def pointers(matrix: Matrix) -> tuple[int, int | None]:
    return address(matrix.data), address(matrix.scale) if matrix.scale else None
