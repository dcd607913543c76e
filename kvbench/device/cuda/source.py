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

WARPS = 8
"""Warps of a block (matvec.cu)."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a block takes W: rows of it per warp, and 16-byte loads under way for each."""

    per_warp: int
    depth: int

    def ring_bytes(self, blocked: bool) -> int:
        """Shared memory of what is read ahead; block-scaled types have a scale beside each load."""
        return WARPS * 32 * self.per_warp * self.depth * (20 if blocked else 16)


FEW_ROWS, MANY_ROWS, MANY_BLOCKED = Cut(2, 8), Cut(4, 4), Cut(2, 8)


def cut_of(rows: int, blocked: bool) -> Cut:
    """The cut for a variant of ``rows``; ``blocked``: weights with a scale per 32 values."""
    if rows < 4:
        return FEW_ROWS
    return MANY_BLOCKED if blocked and rows > 8 else MANY_ROWS


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
            cut = cut_of(rows, weights in ("Q8", "Q4"))
            shape = (("NR", str(cut.per_warp)), ("DEPTH", str(cut.depth)))
            yield "matvec", (("WT", weights), ("ROWS", str(rows)), *shape)
        if weights != "F32":
            yield "tile", (("WT", weights),)
    for kv in ("F16", "Q8", "Q4"):
        yield "rows", (("KV", kv),)
        for head_dim, group in ((64, 3), (128, 4), (256, 6), (16, 2), (128, 8)):
            yield "attend", (("KV", kv), ("HD", str(head_dim)), ("G", str(group)))
