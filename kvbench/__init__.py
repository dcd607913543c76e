"""kvbench: bench and judge for exact inference-engine optimisations.

Importing this package imports nothing else. ``kvbench.cli`` is the command line; the names below
come from ``kvbench.api`` when they are first used.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["Arm", "GateReport", "Summary", "Task", "ab", "assert_exact", "gate", "gate_arms"]

if TYPE_CHECKING:
    from kvbench.api import Arm, GateReport, Summary, Task, ab, assert_exact, gate, gate_arms


def __getattr__(name: str) -> Any:
    if name in __all__:
        import importlib

        return getattr(importlib.import_module("kvbench.api"), name)
    raise AttributeError(f"module 'kvbench' has no attribute {name!r}")
