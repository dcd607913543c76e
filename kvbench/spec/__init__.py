"""Suites: strict TOML, the cells of their grids, and how slow their links are."""

from kvbench.spec.cells import Cell, expand
from kvbench.spec.link import Link
from kvbench.spec.load import find_suite, load_suite, parse_suite, suite_from_builtins, suite_names
from kvbench.spec.suite import (
    CONVERSATIONS,
    ArmSpec,
    Limits,
    LinkSpec,
    Suite,
    Timeouts,
    Tolerance,
    Workload,
)

__all__ = [
    "CONVERSATIONS",
    "ArmSpec",
    "Cell",
    "Limits",
    "Link",
    "LinkSpec",
    "Suite",
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
