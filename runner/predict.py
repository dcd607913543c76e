"""Predictions of the virtual device: for a shape, for a stored experiment, for the origin."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvbench.analysis.ceiling import STEP_MS, WINDOW_MIB, ceiling
from kvbench.analysis.pipeline_model import crossing_rows, optimum_ring_bytes
from kvbench.bundled import published_dir
from kvbench.decoder import synthetic
from kvbench.decoder.config import ModelConfig
from kvbench.decoder.model import open_model
from kvbench.decoder.settings import parse
from kvbench.device.kvtypes import kv_type
from kvbench.device.virtual import Costs
from kvbench.errors import UsageError
from kvbench.records import ArmSummary, CellSummary, Summary
from kvbench.transport.budget import Decline, slot_size
from kvbench.transport.settings import TransportSettings
from kvbench.transport.simulate import Shape, simulate
from kvbench.transport.window import Geometry

MIB = 1 << 20
DEPTHS = (1, 2, 4)
ORIGIN_ROW_BYTES = 1088
"""q8_0: 4 KV heads of 256, 34 bytes for each 32 elements."""
ORIGIN_LAYERS = 16
CALIBRATION_ROWS = 19_246
PUBLISHED_LINK = 22.0e9
PUBLISHED_RING_MIB = 102.0
PUBLISHED_CROSSING = 20_556.0
"""Stated by the origin beside its tables: bytes/s delivered, best ring, rows of its decline."""
ORIGIN_LOOP = TransportSettings(budget_mib=0, loop="blocking", tail="host", boundary="wait")


@dataclass(frozen=True)
class Forecast:
    """One context of a shape; tokens/s of one sequence."""

    rows: int
    ordered: float
    pipelined: dict[int, float]
    """By depth."""
    ring_mib: float
    """Of depth 1."""

    @property
    def best_depth(self) -> int:
        """The fastest; the smaller of equals."""
        return max(self.pipelined, key=lambda depth: (self.pipelined[depth], -depth))

    @property
    def gain_percent(self) -> float:
        """Of the best depth."""
        return 100 * (self.pipelined[self.best_depth] / self.ordered - 1)


def forecast(
    shape: Shape, costs: Costs, base: TransportSettings, contexts: Sequence[int], *, lag: int = 1
) -> list[Forecast]:
    """Ordered and pipelined speed at each context. The ring's budget does not bind.

    ``lag``: how many tokens the host runs ahead of what it has read.
    """
    found = []
    for rows in contexts:
        ordered = simulate(shape, costs, replace(base, depth=0), rows, lag=lag).tok_s
        arms = {
            depth: simulate(shape, costs, replace(base, depth=depth, budget_mib=0), rows, lag=lag)
            for depth in DEPTHS
        }
        speeds = {depth: arm.tok_s for depth, arm in arms.items()}
        found.append(Forecast(rows, ordered, speeds, arms[1].ring_bytes / MIB))
    return found


def model_config(model: str) -> ModelConfig:
    """A model's shape; nothing of a synthetic one is loaded."""
    if model.startswith(synthetic.PREFIX):
        return synthetic.parse(model)[0]
    return open_model(model).config


def shape_of(model: str, kv: str, compute_s: float, outside_s: float) -> Shape:
    """A model's attention layers and KV rows."""
    config = model_config(model)
    codec = kv_type(kv, n_kv_heads=config.n_kv_heads, head_dim=config.head_dim)
    attention = sum(kind == "attention" for kind in config.layer_kinds)
    return Shape(attention, codec.pitch, compute_s, outside_s)


@dataclass(frozen=True)
class Prediction:
    """One figure against what was measured; ``error`` in percentage points or percent."""

    what: str
    predicted: float
    measured: float
    unit: str
    note: str = ""

    @property
    def error(self) -> float:
        """Points where the figure is a gain in percent, else percent of the measured figure."""
        if self.unit == "%":
            return self.predicted - self.measured
        return 100 * (self.predicted / self.measured - 1)


def against_run(summary: Summary) -> list[Prediction]:
    """Every arm of a stored experiment, predicted from its cell's baseline alone.

    Raises ``UsageError`` if no cell has a known link and a baseline that copies in order.
    """
    found = [p for cell in summary.cells for p in _cell(cell, summary.baseline)]
    if not found:
        raise UsageError(
            f"{summary.run}: nothing to predict: it needs a slowed link and a baseline of depth 0"
        )
    return found


def _cell(cell: CellSummary, baseline: str) -> Iterator[Prediction]:
    parts = ceiling(cell, baseline)
    if parts is None:
        return
    base = next(arm for arm in cell.arms if arm.name == baseline)
    rows = int(cell.workload.get("prompt_tokens", 0))
    link = float(cell.link["bytes_per_s"])
    layers = _layers(cell.arms)
    row_bytes = round(base.metrics[WINDOW_MIB] * MIB / (2 * layers * rows) / 16) * 16
    shape = Shape(layers, max(row_bytes, 16), parts.compute_ms / 1e3)
    for arm in cell.arms:
        step = arm.metrics.get(STEP_MS)
        if arm.name == baseline or step is None:
            continue
        settings = parse(dict(arm.settings)).transport()
        made = simulate(shape, Costs(link=link), settings, rows)
        yield Prediction(f"{cell.name}, {arm.name}", 1 / made.step_s, 1e3 / step, "steps/s")


def _layers(arms: Sequence[ArmSummary]) -> int:
    """Transported layers, from an arm's deliveries a graph; 1 where no arm reports them."""
    for arm in arms:
        for part in arm.plan.values():
            if isinstance(part, dict) and part.get("staged_graphs") and part.get("deliveries"):
                return max(1, round(float(part["deliveries"]) / float(part["staged_graphs"])))
    return 1


@dataclass(frozen=True)
class Origin:
    """What one published row says of the origin's machine and model."""

    costs: Costs
    compute_s: float
    outside_s: float

    def shape(self, rows: int, resident: int = 0) -> Shape:
        """The model at ``rows`` of history. The work outside the loop grows with the rows."""
        return Shape(
            splits=ORIGIN_LAYERS - resident,
            row_bytes=ORIGIN_ROW_BYTES,
            compute_s=self.compute_s,
            outside_s=self.outside_s * rows / CALIBRATION_ROWS,
            upload_bytes=256 << 10,
        )

    def speeds(self, rows: int, settings: TransportSettings = ORIGIN_LOOP) -> dict[int, float]:
        """Tokens/s at depths 0, 1, 2 and 4 in the origin's loop."""
        return {
            depth: simulate(
                self.shape(rows), self.costs, replace(settings, depth=depth), rows
            ).tok_s
            for depth in (0, *DEPTHS)
        }


def calibrate() -> Origin:
    """From the published row at 19,246 tokens: window, copy, compute and its ceiling."""
    row = next(r for r in _table("server_decode") if r["prompt_tokens"] == str(CALIBRATION_ROWS))
    copy_s, compute_s = float(row["copy_ms"]) / 1e3, float(row["compute_ms"]) / 1e3
    costs = Costs(link=float(row["window_mib"]) * MIB / copy_s)
    return Origin(costs, compute_s, 1 / float(row["ceiling_tps"]) - max(copy_s, compute_s))


def _table(name: str) -> list[dict[str, str]]:
    path: Path = published_dir() / f"{name}.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


NEAR_CROSSING = (
    "where copy = compute, errors of both arms add up in the gain; the calibration row's own copy, "
    "compute and work outside the loop add up to more than its ordered token"
)


def _copy_bound(origin: Origin, rows: int, token_s: float) -> str:
    """Why a row past the crossing is off: what its token takes beyond its copies."""
    beyond = 1e3 * (token_s - origin.shape(rows).window_bytes(rows) / origin.costs.link)
    row = next(r for r in _table("server_decode") if r["prompt_tokens"] == str(CALIBRATION_ROWS))
    known = 1e3 / float(row["pipelined_tps"]) - float(row["copy_ms"])
    return (
        f"the published pipelined token takes {beyond:.1f} ms beyond its copies, the calibration "
        f"row's {known:.1f} ms; that row does not say what grows"
    )


def origin_predictions(origin: Origin) -> list[Prediction]:
    """The published rows that the calibration has not seen, and the row it has, marked so."""
    found = list(_sweep(origin))
    here = origin.speeds(CALIBRATION_ROWS)
    note = "calibration row"
    for row in _table("depth"):
        depth = int(row["depth"])
        found.append(Prediction(f"depth {depth}", here[depth], float(row["tps"]), "tok/s", note))
        note = ""
    found += _device_layers(origin)
    found += _packing()
    slots_mib = optimum_ring_bytes(3, ORIGIN_LAYERS, PUBLISHED_LINK, origin.compute_s) / MIB
    found.append(
        Prediction("optimum ring, at the published 22.0 GB/s", slots_mib, PUBLISHED_RING_MIB, "MiB")
    )
    rows = crossing_rows(ORIGIN_LAYERS, ORIGIN_ROW_BYTES, origin.costs.link, origin.compute_s)
    found.append(Prediction("rows at which copy = compute", rows, PUBLISHED_CROSSING, "rows"))
    return found


def _sweep(origin: Origin) -> Iterator[Prediction]:
    seen: set[int] = set()
    for row in _table("context_sweep"):
        rows = int(row["context"])
        if rows in seen or row["gain_percent"] == "declined":
            continue
        seen.add(rows)
        speeds = origin.speeds(rows)
        gain = 100 * (speeds[1] / speeds[0] - 1)
        measured = float(row["gain_percent"])
        off = abs(gain - measured) > 5
        crossing = crossing_rows(
            ORIGIN_LAYERS, ORIGIN_ROW_BYTES, origin.costs.link, origin.compute_s
        )
        token_s = 1 / float(row["pipelined_tps_1"])
        reason = NEAR_CROSSING if rows < crossing else _copy_bound(origin, rows, token_s)
        note = reason if off else ""
        yield Prediction(f"gain at {rows:,}", gain, measured, "%", note)


def _device_layers(origin: Origin) -> Iterator[Prediction]:
    for row in _table("device_layers"):
        resident = int(row["device_layers"])
        shape = origin.shape(CALIBRATION_ROWS, resident)
        for arm, depth in (("ordered_tps", 0), ("pipelined_tps", 1)):
            if resident and row[arm]:
                settings = replace(ORIGIN_LOOP, depth=depth)
                made = simulate(shape, origin.costs, settings, CALIBRATION_ROWS)
                what = f"{resident} layers on the device, {arm.removesuffix('_tps')}"
                yield Prediction(what, made.tok_s, float(row[arm]), "tok/s")


def _packing() -> Iterator[Prediction]:
    """Eight sequences behind 2,048 tokens in a cache of 32,768: packed slots fit 128 MiB.

    Unpacked, a slot spans the cache, gaps included, and the ring declines.
    """
    rows = {int(r["budget_mib"]): r for r in _table("ring_packing") if r["depth"] == "1"}
    settings = replace(ORIGIN_LOOP, depth=1, budget_mib=128)
    eight = Geometry(tuple(range(8)), 2048 + 1)
    packed = slot_size(eight, ORIGIN_ROW_BYTES, 4096, settings)
    spanning = slot_size(Geometry((0,), 32_768), ORIGIN_ROW_BYTES, 32_768, settings)
    if isinstance(packed, int) and isinstance(spanning, Decline):
        measured = float(rows[128]["packed_slot_mib"])
        note = f"8 sequences, gaps in the slots: {spanning.detail}"
        yield Prediction("8 sequences packed, slot at 128 MiB", packed / MIB, measured, "MiB", note)
    span_mib = Geometry((0,), 32_768).window_bytes(ORIGIN_ROW_BYTES) / MIB
    measured = float(rows[512]["unpacked_slot_mib"])
    yield Prediction("8 sequences unpacked, slot at 512 MiB", span_mib, measured, "MiB")
