"""Suites: strict TOML, the cells of their grids, and the task of one run."""

from kvbench.spec.cells import Cell, expand
from kvbench.spec.load import find_suite, load_suite, parse_suite, suite_from_builtins, suite_names
from kvbench.spec.suite import ArmSpec, LinkSpec, Model, Suite, Timeouts, Tolerance, Workload
from kvbench.spec.task import Link, Task

__all__ = [
    "ArmSpec",
    "Cell",
    "Link",
    "LinkSpec",
    "Model",
    "Suite",
    "Task",
    "Timeouts",
    "Tolerance",
    "Workload",
    "expand",
    "find_suite",
    "load_suite",
    "parse_suite",
    "suite_from_builtins",
    "suite_names",
]
