"""The argument structures of the kernels, field for field as the .cu files declare them."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int, c_int64, c_uint64, c_void_p


def _structure(name: str, **fields: type) -> type[Structure]:
    return type(name, (Structure,), {"_fields_": list(fields.items())})


P, I, L, F = c_void_p, c_int, c_int64, c_float  # noqa: E741

Mat = _structure(
    "Mat",
    w=P, scale=P, x=P, gain=P, y=P, memory=P, state=P,
    ldx=L, ldy=L, K=I, N=I, rows=I, mode=I, eps=F,
)  # fmt: skip
Tile = _structure(
    "Tile",
    w=P, scale=P, x=P, gain=P, y=P, memory=P, state=P, split=P, factors=P, sums=P,
    ldx=L, ldy=L, K=I, N=I, rows=I, slices=I, mode=I, eps=F,
)  # fmt: skip
Window = _structure(
    "Window",
    k=P, v=P, stream_bytes=L, pitch=L, state=P, cells=P, cell_stride=I, lane_column=I,
    n_kv=I, pad_blocks=I, max_spans=I, fold=I, scale=F, q=P, part=P, part_ml=P, arrived=P,
    out=P, out_stride=L, qkv=P, rows=P, cosines=P, sines=P, row_pitch=L, rope_dim=I, interleaved=I,
)  # fmt: skip
Combine = _structure("Combine", part=P, part_ml=P, state=P, out=P, out_stride=L, max_spans=I)
Encode = _structure(
    "Encode",
    qkv=P, q=P, rows=P, state=P, cosines=P, sines=P,
    pitch=L, q_width=I, kv_width=I, head_dim=I, rope_dim=I, interleaved=I,
)  # fmt: skip
Put = _structure(
    "Put",
    rows=P, to=P, state=P, part_bytes=L, stream_bytes=L, pitch=L, row_bytes=I, lane_column=I,
)  # fmt: skip
Embed = _structure("Embed", w=P, scale=P, state=P, x=P, sums=P, K=I, V=I)
Argmax = _structure(
    "Argmax",
    logits=P, best=P, best_at=P, chosen=P, state=P, V=I, n_rows=I, rows=I * 16,
)  # fmt: skip
Audit = _structure(
    "Audit",
    k=P, v=P, state=P, cells=P, total=P, sums=P, stream_bytes=L, pitch=L,
    cell_stride=I, lane_column=I, rows=I, tile_last=I,
)  # fmt: skip
Synth = _structure(
    "Synth",
    out=P, k0=c_uint64, k1=c_uint64, first=L, count=L, sharp=L,
    unit=F, factor=F, sharp_factor=F, offset=F,
)  # fmt: skip
Pack = _structure("Pack", values=P, out=P, scale=P, count=L)
Read = _structure("Read", values=P, vectors=c_uint64, sink=P)
