"""Versioned data that outlives a process: results, journal lines, verdicts. Pure data and its I/O."""

from kvbench.records.result import Failure, Result

__all__ = ["Failure", "Result"]
