"""Predictions of the virtual device: for a shape, for a stored experiment, for the origin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvbench.analysis.ceiling import STEP_MS, WINDOW_MIB, ceiling
from kvbench.decoder import synthetic
from kvbench.decoder.config import ModelConfig
from kvbench.decoder.model import open_model
from kvbench.decoder.settings import parse
from kvbench.device.kvtypes import kv_type
from kvbench.device.virtual import Costs
from kvbench.errors import UsageError
from kvbench.records import ArmSummary, CellSummary, Summary
from kvbench.transport.settings import TransportSettings
from kvbench.transport.simulate import Shape, simulate

MIB = 1 << 20
DEPTHS = (1, 2, 4)


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
