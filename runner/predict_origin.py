"""Predictions of the origin's published figures, from one published row.

How its loop is read: depth N keeps N + 1 deliveries ahead of the split that runs, in N + 2 slots,
and a slot is released at the end of its split. So its blocking copy of 3.57 ms queues behind two
deliveries of 28.3 / 16 ms; and with N + 1 slots the next delivery waits for the running split, and
the late tail, queued behind it, for the delivery.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvbench.analysis.pipeline_model import gain_per_mib, optimum_ring_bytes
from kvbench.bundled import published_dir
from kvbench.device.virtual import Costs
from kvbench.transport.budget import Decline, slot_size
from kvbench.transport.settings import TransportSettings
from kvbench.transport.simulate import Shape, simulate
from kvbench.transport.window import Geometry
from runner.predict import MIB, Prediction

ROW_BYTES = 1088
"""q8_0: 4 KV heads of 256, 34 bytes for each 32 elements."""
LAYERS = 16
CALIBRATION_ROWS = 19_246
PEAK_ROWS = 16_384
LINK = 22.0e9
RING_MIB = 102.0
MOST_ROWS = 20_556.0
FEWER_SLOTS_GAIN = 0.5
"""Stated by the origin beside its tables: bytes/s delivered, best ring, rows past which the default
budget declines, percent gained with N + 1 slots."""


TREND_ROWS = (40_000, 80_000)
TREND_TOKENS_S = (0.005, 0.02, 0.08)
TREND_WAIT_S = 1e-4


@dataclass(slots=True, unsafe_hash=True)
class _Loop(TransportSettings):
    """The transport's settings with slots of one's own."""

    slots: int = 0

    @property
    def n_slots(self) -> int:
        """As given."""
        return self.slots


def origin_loop(depth: int, slots: int | None = None, budget_mib: int = 0) -> TransportSettings:
    """The origin's host-blocking loop at its depth N, with N + 2 slots unless told otherwise."""
    return _Loop(
        depth=depth + 1 if depth else 0,
        budget_mib=budget_mib,
        loop="blocking",
        tail="host",
        boundary="wait",
        slots=depth + 2 if slots is None else slots,
    )


@dataclass(frozen=True)
class Origin:
    """What one published row says of the origin's machine and model."""

    costs: Costs
    compute_s: float
    outside_s: float
    """Of an ordered token: what it takes beyond copy and compute."""
    unhidden_s: float
    """Of a pipelined one: what its ceiling takes beyond the larger of the two."""

    def shape(self, rows: int, *, depth: int, resident: int = 0) -> Shape:
        """The model at ``rows`` of history. The work outside the loop grows with the rows."""
        outside = self.unhidden_s if depth else self.outside_s
        return Shape(
            splits=LAYERS - resident,
            row_bytes=ROW_BYTES,
            compute_s=self.compute_s,
            outside_s=outside * rows / CALIBRATION_ROWS,
            read_share=0.9,
            upload_bytes=256 << 10,
        )

    def tok_s(self, rows: int, depth: int, *, resident: int = 0, slots: int | None = None) -> float:
        """Tokens/s at the origin's depth."""
        shape = self.shape(rows, depth=depth, resident=resident)
        return simulate(shape, self.costs, origin_loop(depth, slots), rows).tok_s

    def gain(self, rows: int, slots: int | None = None) -> float:
        """Percent of depth 1 over ordered."""
        return 100 * (self.tok_s(rows, 1, slots=slots) / self.tok_s(rows, 0) - 1)


def calibrate() -> Origin:
    """From the row at 19,246 tokens: window, copy, compute, its ordered speed and its ceiling."""
    row = _calibration_row()
    copy_s, compute_s = float(row["copy_ms"]) / 1e3, float(row["compute_ms"]) / 1e3
    return Origin(
        Costs(link=float(row["window_mib"]) * MIB / copy_s),
        compute_s,
        1 / float(row["ordered_tps"]) - copy_s - compute_s,
        1 / float(row["ceiling_tps"]) - max(copy_s, compute_s),
    )


def origin_predictions(origin: Origin) -> list[Prediction]:
    """The published figures but those that calibrated."""
    best = optimum_ring_bytes(3, LAYERS, LINK, origin.compute_s) / MIB
    fewer = f"gain at {PEAK_ROWS:,} with N + 1 slots"
    return [
        *_sweep(origin),
        Prediction(fewer, origin.gain(PEAK_ROWS, slots=2), FEWER_SLOTS_GAIN, "%"),
        *_depths(origin),
        *_device_layers(origin),
        *_packing(),
        Prediction("optimum ring, at the published 22.0 GB/s", best, RING_MIB, "MiB"),
        Prediction("most rows before 128 MiB decline", _most_rows(), MOST_ROWS, "rows"),
    ]


def trends(origin: Origin) -> list[str]:
    """What follows from the model where nothing was published to hold it against, in words."""
    near, far = (
        gain_per_mib(rows, LAYERS, ROW_BYTES, origin.costs.link, origin.compute_s)
        for rows in TREND_ROWS
    )
    gains = [f"{_waits_gain(token_s):.1f}% at {1e3 * token_s:.0f} ms" for token_s in TREND_TOKENS_S]
    return [
        f"gain per MiB of ring: {near:.3f}% behind {TREND_ROWS[0]:,} rows, {far:.3f}% behind "
        f"{TREND_ROWS[1]:,}, a factor of {near / far:.2f} for {TREND_ROWS[1] / TREND_ROWS[0]:.0f} "
        "times the rows: past the crossing it falls with their square",
        f"a wait of {1e6 * TREND_WAIT_S:.0f} us left out once a layer: {', '.join(gains)} of "
        "compute a token: a gain from fewer waits shrinks as the token gets longer",
    ]


def _waits_gain(compute_s: float) -> float:
    """Percent that a blocking loop gains if its waits cost nothing."""
    shape = Shape(splits=LAYERS, row_bytes=ROW_BYTES, compute_s=compute_s)
    loop = origin_loop(1)
    costly = simulate(shape, Costs(link=LINK, wait=TREND_WAIT_S), loop, 64).step_s
    return 100 * (costly / simulate(shape, Costs(link=LINK), loop, 64).step_s - 1)


def _sweep(origin: Origin) -> Iterator[Prediction]:
    seen: set[int] = set()
    for row in _table("context_sweep"):
        rows = int(row["context"])
        if rows in seen or row["gain_percent"] == "declined":
            continue
        seen.add(rows)
        gain, measured = origin.gain(rows), float(row["gain_percent"])
        note = _growth(rows, row) if abs(gain - measured) > 5 else ""
        yield Prediction(f"gain at {rows:,}", gain, measured, "%", note)


def _growth(rows: int, row: dict[str, str]) -> str:
    """Why a row is off: how both published tokens grow from the calibration row to it."""
    known = _calibration_row()

    def per_row(arm: str) -> float:
        grown_s = 1 / float(row[f"{arm}_1"]) - 1 / float(known[arm])
        return 1e6 * grown_s / (rows - CALIBRATION_ROWS)

    return (
        f"from {CALIBRATION_ROWS:,} rows on the published pipelined token grows by "
        f"{per_row('pipelined_tps'):.2f} us a row, more than the ordered one "
        f"({per_row('ordered_tps'):.2f}); no overlap of the same work does that"
    )


def _depths(origin: Origin) -> Iterator[Prediction]:
    for row in _table("depth"):
        depth = int(row["depth"])
        predicted = origin.tok_s(CALIBRATION_ROWS, depth)
        yield Prediction(f"depth {depth}", predicted, float(row["tps"]), "tok/s")


def _device_layers(origin: Origin) -> Iterator[Prediction]:
    for row in _table("device_layers"):
        resident = int(row["device_layers"])
        for arm, depth in (("ordered_tps", 0), ("pipelined_tps", 1)):
            if resident and row[arm]:
                predicted = origin.tok_s(CALIBRATION_ROWS, depth, resident=resident)
                what = f"{resident} layers on the device, {arm.removesuffix('_tps')}"
                yield Prediction(what, predicted, float(row[arm]), "tok/s")


def _packing() -> Iterator[Prediction]:
    """Eight sequences behind 2,048 tokens in a cache of 32,768: packed slots fit 128 MiB.

    Unpacked, a slot spans the cache, gaps included, and the ring declines.
    """
    rows = {int(r["budget_mib"]): r for r in _table("ring_packing") if r["depth"] == "1"}
    settings = origin_loop(1, budget_mib=128)
    eight = Geometry(tuple(range(8)), 2048 + 1)
    packed = slot_size(eight, ROW_BYTES, 4096, settings)
    spanning = slot_size(Geometry((0,), 32_768), ROW_BYTES, 32_768, settings)
    if isinstance(packed, int) and isinstance(spanning, Decline):
        measured = float(rows[128]["packed_slot_mib"])
        note = f"8 sequences, gaps in the slots: {spanning.detail}"
        yield Prediction("8 sequences packed, slot at 128 MiB", packed / MIB, measured, "MiB", note)
    span_mib = Geometry((0,), 32_768).window_bytes(ROW_BYTES) / MIB
    measured = float(rows[512]["unpacked_slot_mib"])
    yield Prediction("8 sequences unpacked, slot at 512 MiB", span_mib, measured, "MiB")


def _most_rows() -> int:
    """The longest window that three slots hold in the default budget."""
    settings, low, high = origin_loop(1, budget_mib=128), 1, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        fits = isinstance(slot_size(Geometry((0,), middle), ROW_BYTES, 32_768, settings), int)
        low, high = (middle, high) if fits else (low, middle)
    return low


def _calibration_row() -> dict[str, str]:
    rows = (r for r in _table("server_decode") if r["prompt_tokens"] == str(CALIBRATION_ROWS))
    return next(row for row in rows if row["copy_ms"])


def _table(name: str) -> list[dict[str, str]]:
    path: Path = published_dir() / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
