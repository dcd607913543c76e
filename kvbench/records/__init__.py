"""Versioned data that outlives a process: results, journal lines, verdicts."""

from kvbench.records.result import Failure, Result

__all__ = ["Failure", "Result"]
