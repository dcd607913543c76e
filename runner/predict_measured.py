"""Predictions against the sweeps that lie in ``results/``: how far off is this model of a machine?

Compute is what the same sweep measured with all KV on the device, the link is its own by size of
copy; every other arm follows from these two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from kvbench.bundled import measured_dir
from kvbench.decoder import synthetic
from kvbench.decoder.settings import WEIGHT_BYTES
from kvbench.device.virtual import Costs
from kvbench.errors import UsageError
from kvbench.transport.settings import TransportSettings
from kvbench.transport.simulate import simulate
from runner.predict import Prediction, shape_of
from runner.predict_machine import LAG

ARMS: Mapping[str, Mapping[str, Any]] = {
    "ordered": {"depth": 0},
    "depth1": {"depth": 1},
    "depth1 wait": {"depth": 1, "boundary": "wait"},
    "depth1 host tail": {"depth": 1, "tail": "host"},
    "depth2": {"depth": 2},
    "depth4": {"depth": 4},
}
"""Arms of the sweeps that the model describes: all but reads through the link and eager issue."""

CONTENTION = (
    "kernels that read device memory take 7 to 8% longer while a copy runs (results/h200), which "
    "shows where both go on all the time; the model lets each run as if alone"
)


class _Line(msgspec.Struct, frozen=True):
    """What is read of a sweep's line; further fields are the sweep's own."""

    model: str = ""
    arm: str = ""
    kv: str = ""
    weights: str = "f16"
    rows: int = 0
    token_ms: tuple[float, ...] = ()
    rates: dict[str, float] = {}


@dataclass(frozen=True)
class _Machine:
    costs: Costs
    read: float
    """Bytes a second of device memory."""


def sweeps() -> list[Path]:
    """Sweep files that ship with kvbench."""
    return sorted(measured_dir().glob("decode*.jsonl"))


def against_sweep(path: Path) -> list[Prediction]:
    """Every arm of a sweep that the model describes; of ``decode-1.jsonl`` they are named #1."""
    number = path.stem.removeprefix("decode-")
    machine: _Machine | None = None
    found: list[Prediction] = []
    lines = list(_lines(path))
    resident = {
        (line.model, line.kv, line.rows): median(line.token_ms) / 1e3
        for line in lines
        if line.arm == "resident" and line.token_ms
    }
    for line in lines:
        if line.rates:
            machine = _machine(line.rates)
        elif machine is not None and line.token_ms and line.arm in ARMS:
            token_s = resident.get((line.model, line.kv, line.rows))
            if token_s is not None:
                found.append(_predict(number, line, machine, token_s))
    return found


def _lines(path: Path) -> Iterator[_Line]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot read the sweep: {error.strerror}") from None
    for number, line in enumerate(text.splitlines(), 1):
        try:
            yield msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError as error:
            raise UsageError(f"{path}:{number}: damaged sweep: {error}") from None


def _machine(rates: Mapping[str, float]) -> _Machine:
    sizes = sorted(
        (int(name.split("_")[1]) << 10, rate * 1e9)
        for name, rate in rates.items()
        if name.startswith("link_") and name.endswith("_kib_gb_s")
    )
    times = tuple((size, size / rate) for size, rate in sizes)
    costs = Costs(link=rates["link_gb_s"] * 1e9, link_sizes=times)
    return _Machine(costs, rates["device_read_gb_s"] * 1e9)


def _predict(sweep: str, line: _Line, machine: _Machine, token_s: float) -> Prediction:
    config, _ = synthetic.parse(line.model)
    head = config.vocab_size * config.d_model * WEIGHT_BYTES[line.weights] / machine.read
    shape = shape_of(line.model, line.kv, token_s - head, head)
    settings = TransportSettings(row_multiple=512, budget_mib=0, **ARMS[line.arm])
    made = simulate(shape, machine.costs, settings, line.rows, lag=LAG)
    what = f"#{sweep} {line.kv}, {line.rows:,} rows, {line.arm}"
    prediction = Prediction(what, made.tok_s, 1e3 / median(line.token_ms), "tok/s")
    return replace(prediction, note=CONTENTION) if abs(prediction.error) > 5 else prediction
