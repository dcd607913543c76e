"""Where the data files that ship with kvbench lie: suites, published and measured figures.

In a checkout (installed in editable mode or not at all) they are the top-level ``configs/``,
``results/published/`` and ``results/h200/``. A wheel carries the same files as ``kvbench/_suites``,
``kvbench/_published`` and ``kvbench/_measured`` (see ``setup.py``).
"""

from __future__ import annotations

from pathlib import Path

from kvbench.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent


def suites_dir() -> Path:
    """Directory of the bundled suite files, ``NAME.toml`` each."""
    return _locate("_suites", "configs")


def published_dir() -> Path:
    """Directory of the figures published by others, one CSV a table."""
    return _locate("_published", "results/published")


def measured_dir() -> Path:
    """Directory of the sweeps measured on a GPU, one JSON object a line."""
    return _locate("_measured", "results/h200")


def _locate(in_wheel: str, in_checkout: str) -> Path:
    candidates = (_PACKAGE / in_wheel, _PACKAGE.parent / in_checkout)
    for path in candidates:
        if path.is_dir():
            return path
    raise UsageError(
        f"this installation of kvbench lacks its data files: neither {candidates[0]} nor "
        f"{candidates[1]} is a directory; install it again"
    )
