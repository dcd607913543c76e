"""The machine's A/A floor: measured by ``kvbench calibrate``, stored, and used by ``kvbench ab``.

A calibration is valid for one environment and one kind of cell: another workload or another
setting of the baseline scatters differently.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvbench.analysis.estimate import Floor
from kvbench.environment import fingerprint_hash
from kvbench.environment.comparable import MUST_MATCH, value_of
from kvbench.errors import UsageError
from kvbench.paths import expanded
from kvbench.records import Summary, Verdict
from kvbench.records.journal import write_durably
from kvbench.spec import Cell, Suite, suite_from_builtins

CALIBRATION_VERSION = 1


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The spread of d_k between blocks of one arm against itself."""

    v: int
    run: str
    """The A/A experiment that measured it."""
    measured: float
    """Unix seconds."""
    environment: dict[str, Any]
    cell: dict[str, Any]
    variance: float
    df: int


def data_root() -> Path:
    """``KVBENCH_DATA`` if it is set, else the user's data directory; not created here."""
    override = os.environ.get("KVBENCH_DATA", "").strip()
    if override:
        return expanded(override).absolute()
    import platformdirs

    return platformdirs.user_data_path("kvbench", appauthor=False)


def aa_suite(suite: Suite, blocks: int) -> Suite:
    """The suite with its baseline against itself, under two names, over a fixed n."""
    raw = msgspec.to_builtins(suite)
    baseline = next(arm for arm in raw["arms"] if arm["name"] == suite.baseline)
    names = (suite.baseline, f"{suite.baseline}-again"[:64])
    raw["arms"] = [{**baseline, "name": name} for name in names]
    raw.pop("looks", None)
    raw.pop("exclude", None)
    raw["grid"] = {axis: v for axis, v in raw.get("grid", {}).items() if axis[:5] != "arms."}
    raw["blocks"] = blocks
    raw["name"] = f"{suite.name}-aa"[:64]
    found, _ = suite_from_builtins(raw, "calibration")
    return found


def store_calibrations(summary: Summary, cells: Sequence[Cell], suite: Suite) -> list[Calibration]:
    """Keep the variance of each cell of a finished A/A experiment.

    Raises ``UsageError`` for a cell whose A/A is INVALID: its spread says nothing.
    """
    stored = []
    for cell, found in zip(cells, summary.cells, strict=True):
        (comparison,) = found.comparisons
        if comparison.verdict is Verdict.INVALID or len(comparison.d) < 4:
            raise UsageError(f"cell {cell.name}: not calibrated: {comparison.reason}")
        environment = _environment(summary.environment)
        calibration = Calibration(
            v=CALIBRATION_VERSION,
            run=summary.run,
            measured=summary.started,
            environment=environment,
            cell=_kind(cell, suite.baseline),
            variance=float(np.var(comparison.d, ddof=1)),
            df=len(comparison.d) - 1,
        )
        path = _path(environment, calibration.cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, msgspec.json.format(msgspec.json.encode(calibration), indent=1))
        stored.append(calibration)
    return stored


def floors_for(cells: Sequence[Cell], suite: Suite, machine: dict[str, Any]) -> dict[str, Floor]:
    """Cell -> stored floor, for those cells that have one in this environment."""
    environment = _environment(machine)
    found = {}
    for cell in cells:
        path = _path(environment, _kind(cell, suite.baseline))
        if path.is_file():
            calibration = _read(path)
            found[cell.name] = Floor(calibration.variance, calibration.df)
    return found


def _read(path: Path) -> Calibration:
    try:
        calibration = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"{path}: this calibration cannot be read ({error}); remove the file"
        ) from error
    if calibration.v != CALIBRATION_VERSION:
        raise UsageError(f"{path}: version {calibration.v}; calibrate again or remove the file")
    return calibration


def _environment(machine: dict[str, Any]) -> dict[str, Any]:
    return {name: value_of(machine, name) for name in MUST_MATCH}


def _kind(cell: Cell, baseline: str) -> dict[str, Any]:
    arm = cell.arm(baseline)
    link = None if cell.link is None else msgspec.to_builtins(cell.link)
    return {
        "engine": arm.engine,
        "settings": arm.settings,
        "command": list(arm.command),
        "model": cell.model,
        "workload": msgspec.to_builtins(cell.workload),
        "link": link,
    }


def _path(environment: dict[str, Any], kind: dict[str, Any]) -> Path:
    name = fingerprint_hash({"environment": environment, "cell": kind})
    return data_root() / "calibrations" / f"{name}.json"
