"""Arm: ``llama-batched-bench`` (``python -m`` runs it)."""

from __future__ import annotations

import sys

from kvbench.engines.llama_bench import LlamaBatchedBench, main

if __name__ == "__main__":
    sys.exit(main(LlamaBatchedBench))
