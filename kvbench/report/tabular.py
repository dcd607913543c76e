"""Every run as a row: CSV and Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.errors import UsageError
from kvbench.records import Summary

if TYPE_CHECKING:
    import pandas as pd


def runs_frame(summary: Summary) -> pd.DataFrame:
    """One row per run, counted or not, in run order; axes and telemetry as columns."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for cell in summary.cells:
        engines = {arm.name: arm.engine for arm in cell.arms}
        for run in cell.runs:
            row: dict[str, Any] = {
                "run": summary.run,
                "suite": summary.suite,
                "cell": cell.name,
                **{f"axis.{axis}": value for axis, value in cell.axes.items()},
                "order": run.order,
                "block": run.block,
                "attempt": run.attempt,
                "position": run.position,
                "pass": run.pass_,
                "arm": run.arm,
                "engine": engines[run.arm],
                "started": run.started,
                "tok_s": run.tok_s,
                "failure": run.failure,
                "counted": run.counted,
                "outlier": run.outlier,
                "violations": "; ".join(run.violations),
            }
            row |= {f"telemetry.{name}": value for name, value in run.telemetry.items()}
            rows.append(row)
    return pd.DataFrame(rows).sort_values("order", ignore_index=True) if rows else pd.DataFrame()


def write_table(summary: Summary, path: Path) -> None:
    """Write ``.csv`` or ``.parquet`` (needs pyarrow). Raises ``UsageError``."""
    frame = runs_frame(summary)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
        return
    if path.suffix != ".parquet":
        raise UsageError(f"{path}: a table is written as .csv or .parquet")
    try:
        frame.to_parquet(path, index=False)
    except ImportError as error:
        raise UsageError(f"{path}: Parquet needs pyarrow: pip install pyarrow") from error
