"""Load on a running server: open and closed loops, latencies with intervals, goodput."""

from kvbench.engines.load.drive import Outcome, drive
from kvbench.engines.load.spec import LoadSpec, Slo
from kvbench.engines.load.summary import LoadSummary, summarise

__all__ = ["LoadSpec", "LoadSummary", "Outcome", "Slo", "drive", "summarise"]
