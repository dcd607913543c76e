"""Arm: llama.cpp as the ``xllamacpp`` package carries it, driven through its real HTTP server."""

from __future__ import annotations

import sys

from kvbench.engines.llama_server import LlamaServer
from kvbench.engines.serve import serve

PROGRAM = [sys.executable, "-P", "-m", "kvbench.engines.xllamacpp_server"]

if __name__ == "__main__":
    sys.exit(serve(LlamaServer("xllamacpp", PROGRAM)))
