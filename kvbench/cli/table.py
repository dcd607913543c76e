"""What commands there are. Listing them (``kvbench --help``) imports none of them.

To add one: write ``kvbench/cli/NAME.py`` with a click command called ``command`` and add a line.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A command: the module that defines it, and its line in ``kvbench --help``."""

    module: str
    help: str


COMMANDS: dict[str, Entry] = {
    "assets": Entry("kvbench.cli.assets", "Pull, list and remove models and texts."),
    "ab": Entry("kvbench.cli.ab", "Gate a suite's arms, run its blocks, judge."),
    "show": Entry("kvbench.cli.show", "Draw a stored experiment's tables again."),
    "profile": Entry(
        "kvbench.cli.profile", "Count API calls, overlap and gaps; draw the timeline."
    ),
    "calibrate": Entry("kvbench.cli.calibrate", "Measure and store this machine's A/A floor."),
    "validate": Entry("kvbench.cli.validate", "Check the verdicts' error rates by simulation."),
    "suites": Entry("kvbench.cli.suites", "List the bundled suites."),
}
"""In the order in which they are listed: what is measured first, then what explains it."""
