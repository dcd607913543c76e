"""Nsight Systems as the recorder: the right command line, one file an arm."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from kvbench.device.ranges import DOMAIN, MEASURED

ENVIRONMENT = {
    "KVBENCH_NVTX": "1",
    # Without it nsys starts a capture range only at strings registered with NVTX.
    "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0",
}


def find_nsys() -> str | None:
    """The program, if it is on the PATH."""
    return shutil.which("nsys")


def command(program: str, output: Path, argv: Sequence[str]) -> list[str]:
    """Record ``argv`` from the start to the end of the measured range into ``output``.sqlite."""
    return [
        program,
        "profile",
        "--trace=cuda,nvtx",
        "--sample=none",
        "--cpuctxsw=none",
        "--cuda-graph-trace=node",
        "--capture-range=nvtx",
        f"--nvtx-capture={MEASURED}@{DOMAIN}",
        "--capture-range-end=stop",
        "--export=sqlite",
        "--force-overwrite=true",
        f"--output={output}",
        *argv,
    ]
