"""Issue: NVTX ranges are verified without a GPU, through an injection library built with gcc."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

needs_gcc = pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc on this machine")
SOURCE = Path(__file__).with_name("injection.c")
WARMUP, GENERATE = 2, 3
DECODE = f"""
import sys
from kvbench.decoder.model import open_model
from kvbench.decoder.session import DecodeTask, run_task
from kvbench.decoder.settings import DecoderSettings

task = DecodeTask([[1, 2, 3]], generate={GENERATE}, warmup={WARMUP}, snapshots=False)
run_task(open_model("synthetic:tiny"), DecoderSettings(depth=1, lag=1), task)
print("nvtx" in sys.modules)
"""


def decode(**env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if "NVTX" not in k}
    done = subprocess.run(
        [sys.executable, "-c", DECODE],
        env={**clean, "OPENBLAS_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("nvtx") / "libinjection.so"
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        str(built),
        str(SOURCE),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return built


def nested(lines: list[str]) -> tuple[list[str], set[str]]:
    """Names of the outermost ranges in order, and of all that lie inside one; all are closed."""
    outer: list[str] = []
    inside: set[str] = set()
    depth = 0
    for line in lines:
        if line.startswith("push kvbench "):
            name = line.removeprefix("push kvbench ")
            if depth:
                inside.add(name)
            else:
                outer.append(name)
        depth += line.startswith("push") - line.startswith("pop")
    assert depth == 0
    return outer, inside


@needs_gcc
def test_tokens_and_the_measured_part_are_ranges(library: Path, tmp_path: Path) -> None:
    log = tmp_path / "ranges"
    assert decode(NVTX_INJECTION64_PATH=str(library), NVTX_LOG=str(log)) == "True\n"
    lines = [line for line in log.read_text().splitlines() if " kvbench" in line]
    begun, ended = lines.index("start kvbench measured"), lines.index("end kvbench 1")
    outer, inside = nested(lines)
    assert outer.count("token") == WARMUP + GENERATE
    assert "token" not in inside
    assert {"prefill", "split 0", "split 1", "early 0", "early 1", "wait read"} <= {*outer} | inside
    assert lines[:begun].count("push kvbench token") >= WARMUP
    assert lines[begun:ended].count("pop kvbench") >= GENERATE
    assert "push kvbench token" not in lines[ended:]


def test_a_timed_run_does_not_even_load_nvtx() -> None:
    assert decode() == "False\n"
