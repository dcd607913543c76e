"""Fixed arithmetic: one BLAS thread, and a name for everything that may change a bit.

OpenBLAS gives a row different bits for different thread counts, so the count is pinned before the
first product; whatever else changes bits (BLAS build, chosen core type, kernel sources) is part of
the key under which prompt snapshots are kept.
"""

from __future__ import annotations

import functools
import hashlib
import platform
from pathlib import Path
from typing import Any

BLAS_THREADS = 1


@functools.cache
def pin() -> Any:
    """Pin BLAS to ``BLAS_THREADS`` threads for the life of the process."""
    import numpy  # noqa: F401 - BLAS must be loaded to be pinned
    from threadpoolctl import threadpool_limits

    return threadpool_limits(limits=BLAS_THREADS, user_api="blas")


@functools.cache
def fingerprint() -> str:
    """Hex digest over BLAS build, CPU core type and kernel sources: equal means equal bits."""
    from threadpoolctl import threadpool_info

    from kvbench.device import cpu

    parts = [f"threads={BLAS_THREADS}", platform.machine()]
    for library in threadpool_info():
        if library["user_api"] == "blas":
            parts += [str(library.get(k)) for k in ("internal_api", "version", "architecture")]
    folder = Path(cpu.__file__).parent
    sources = [folder / "kernels.py", *(folder.parent / n for n in ("kvtypes.py", "rotary.py"))]
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=16)
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()
