"""Matrix-vector products for a few rows: how a product is cut into blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from kvbench.device.cuda import arguments
from kvbench.device.cuda.driver import Launch, function, multiprocessors, shared_memory
from kvbench.device.cuda.source import MACRO, cut_for, cuts_of
from kvbench.device.cuda.weights import Matrix
from kvbench.device.kernels import STATE_COLUMNS
from kvbench.device.memory import Buffer
from kvbench.errors import DeviceError

Mode = Literal["plain", "residual", "gated", "recurrent"]
MODES: tuple[Mode, ...] = get_args(Mode)


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


@dataclass(frozen=True, slots=True)
class Product:
    """y[r] = W x[r] and what becomes of it; pointers to row 0, and strides in floats."""

    weight: Matrix
    x: int
    ldx: int
    y: int
    ldy: int
    mode: Mode = "plain"
    gain: int | None = None
    """[k]: x is RMS-normed first."""
    memory: int | None = None
    """[streams, n/2], of a recurrent product, which reads ``state``."""
    state: int | None = None
    eps: float = 0.0

    def from_row(self, row: int) -> Product:
        """The same for rows of the batch from ``row`` on."""
        return replace(
            self,
            x=self.x + row * self.ldx * 4,
            y=self.y + row * self.ldy * 4,
            state=None if self.state is None else self.state + row * STATE_COLUMNS * 4,
        )

    def mode_number(self) -> int:
        """What common.cuh calls the mode."""
        return MODES.index(self.mode)


def product_launch(p: Product, rows: int) -> Launch:
    """One product for up to ``most_rows``."""
    kind = MACRO[p.weight.kind]
    cuts = cuts_of(kind, shared_memory())
    variant = next(v for v in cuts if v >= rows)
    cut = cut_for(p.weight.k, kind, cuts[variant])
    # A block per multiprocessor stays for all its rows of W and brings x in once. As it ends, the
    # next kernel's block takes its place and reads ahead while others still run.
    blocks = min(-(-p.weight.n // (cut.warps * cut.per_warp)), multiprocessors())
    return Launch(
        function("matvec", "matvec", WT=kind, ROWS=variant, **cut.defines()),
        (blocks,),
        (cut.warps * 32,),
        arguments.Mat(
            *pointers(p.weight), p.x, p.gain, p.y, p.memory, p.state,
            p.ldx, p.ldy, p.weight.k, p.weight.n, rows, p.mode_number(), p.eps,
        ),
        shared=cut.shared_bytes(variant, p.weight.k, kind),
    )  # fmt: skip


def pointers(matrix: Matrix) -> tuple[int, int | None]:
    return address(matrix.data), address(matrix.scale) if matrix.scale else None
