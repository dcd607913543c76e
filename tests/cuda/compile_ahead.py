"""Compile every kernel variant the tests use into CuPy's disk cache, on all cores.

python -m tests.cuda.compile_ahead
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor

from kvbench.device.cuda.source import Defines, sample_variants


def compile_one(variant: tuple[str, Defines]) -> None:
    from kvbench.device.cuda.driver import _module

    file, defines = variant
    first = {"matvec": "matvec", "attend": "attend", "rows": "put_rows",
             "tokens": "spin", "weights": "pack",
             "tile": "tile_multiply"}[file]  # fmt: skip
    _module(0, file, tuple(sorted(defines))).get_function(first)


def main() -> None:
    variants = sorted(sample_variants(), key=lambda v: v[0] != "matvec")
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(compile_one, variants))


if __name__ == "__main__":
    main()
