"""Every run as a row: CSV and Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kvbench.errors import UsageError
from kvbench.records import Summary

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["csv", "parquet"]


def runs_frame(summary: Summary) -> pd.DataFrame:
    """One row per run, counted or not, in run order; axes and telemetry as columns."""
    import pandas as pd

    rows = [(cell, run) for cell in summary.cells for run in cell.runs]
    if not rows:
        return pd.DataFrame()
    rows.sort(key=lambda row: row[1].order)
    engines = {(c.name, arm.name): arm.engine for c in summary.cells for arm in c.arms}
    columns: dict[str, Any] = {
        "run": summary.run,
        "suite": summary.suite,
        "cell": [cell.name for cell, _ in rows],
    }
    for axis in dict.fromkeys(axis for cell in summary.cells for axis in cell.axes):
        columns[f"axis.{axis}"] = _one_type([cell.axes.get(axis) for cell, _ in rows])
    for name in ("order", "block", "attempt", "position", "pass", "arm"):
        columns[name] = [getattr(run, "pass_" if name == "pass" else name) for _, run in rows]
    columns["engine"] = [engines[cell.name, run.arm] for cell, run in rows]
    for name in ("started", "tok_s", "failure", "counted", "outlier"):
        columns[name] = [getattr(run, name) for _, run in rows]
    columns["violations"] = ["; ".join(run.violations) for _, run in rows]
    readings = [run.telemetry for _, run in rows]
    for name in dict.fromkeys(name for reading in readings for name in reading):
        columns[f"telemetry.{name}"] = [reading.get(name) for reading in readings]
    return pd.DataFrame(columns)


def _one_type(values: list[Any]) -> list[Any]:
    """The values as they are if all are numbers, all texts or all booleans; else all as text."""
    kinds = {float if type(v) is int else type(v) for v in values if v is not None}
    if len(kinds) <= 1 and kinds <= {float, str, bool}:
        return values
    return [None if v is None else v if isinstance(v, str) else json.dumps(v) for v in values]


def write_table(summary: Summary, path: Path, kind: Kind) -> None:
    """Write the runs to ``path``; Parquet needs pyarrow. Raises ``UsageError``."""
    frame = runs_frame(summary)
    try:
        if kind == "csv":
            frame.to_csv(path, index=False)
        else:
            frame.to_parquet(path, engine="pyarrow", index=False)
    except ImportError as error:
        raise UsageError(
            f"{path}: Parquet needs the extra: pip install 'kvbench[parquet]'"
        ) from error
    except OSError as error:
        raise UsageError(f"{path}: cannot write: {error.strerror or error}") from error
