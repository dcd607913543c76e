"""Starts a server for a test: the stub, or llama.cpp's own (xllamacpp)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvbench.engines.server_process import launch
from kvbench.engines.xllamacpp import PROGRAM

HERE = Path(__file__).parent
STUB = str(HERE / "stub_server.py")
LLAMA = str(HERE / "stub_llama.py")
REAL_LLAMA = str(HERE / "real_llama.py")


@contextmanager
def running_stub(directory: Path, fault: dict[str, Any] | None = None) -> Iterator[str]:
    """The stub's URL; it ends with the block."""
    port_file = directory / "port"
    port_file.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-I", STUB, str(port_file), json.dumps(fault or {})]
    )
    try:
        deadline = time.monotonic() + 30
        while not port_file.exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        scheme = "https" if fault and "certificate" in fault else "http"
        yield f"{scheme}://127.0.0.1:{port_file.read_text()}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def running_real(model: str, *options: str) -> Iterator[str]:
    """The URL of llama.cpp's own server on ``model``; it ends with the block."""
    fixed = ["-m", model, "-t", "1", "--cache-ram", "0", *options]
    server = launch(
        lambda port: [*PROGRAM, "--port", str(port), *fixed],
        port=None,
        health="/health",
        timeout_s=60.0,
    )
    try:
        yield f"http://127.0.0.1:{server.target.port}"
    finally:
        server.stop()
