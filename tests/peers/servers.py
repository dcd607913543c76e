"""Starts the stub server for a test."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STUB = str(HERE / "stub_server.py")
LLAMA = str(HERE / "stub_llama.py")


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
