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
    "gate": Entry("kvbench.cli.gate", "Say whether outputs are exact, and where they differ."),
    "faults": Entry("kvbench.cli.faults", "List planted faults and the gates that notice them."),
    "assets": Entry("kvbench.cli.assets", "Pull, list and remove models and texts."),
    "ab": Entry("kvbench.cli.ab", "Gate a suite's arms, run its blocks, judge."),
    "run": Entry("kvbench.cli.run", "Decode once: text, tokens/s, bandwidth, hashes."),
    "show": Entry("kvbench.cli.show", "Draw a stored experiment's tables again."),
    "profile": Entry(
        "kvbench.cli.profile", "Count API calls, overlap and gaps; draw the timeline."
    ),
    "predict": Entry("kvbench.cli.predict", "Predict gain, best depth and ring from a cost model."),
    "compare": Entry("kvbench.cli.compare", "Compare the gains of two stored experiments."),
    "history": Entry("kvbench.cli.history", "Show one cell over many experiments."),
    "bisect": Entry("kvbench.cli.bisect", "Find the revision that changed bytes or speed."),
    "bundle": Entry("kvbench.cli.bundle", "Pack a stored experiment as evidence."),
    "verify": Entry("kvbench.cli.verify", "Judge a bundle again, from its raw runs."),
    "export": Entry("kvbench.cli.export", "Write a stored experiment in another format."),
    "clean": Entry("kvbench.cli.clean", "Remove caches or old experiments."),
    "doctor": Entry("kvbench.cli.doctor", "Say what makes this machine noisy."),
    "calibrate": Entry("kvbench.cli.calibrate", "Measure and store this machine's A/A floor."),
    "validate": Entry("kvbench.cli.validate", "Check the verdicts' error rates by simulation."),
    "selfcheck": Entry("kvbench.cli.selfcheck", "Test the bench itself on this machine."),
    "load": Entry("kvbench.cli.load", "Put load on a running server: latencies, goodput, errors."),
    "init": Entry("kvbench.cli.init", "Write a starter suite to edit."),
    "waits": Entry("kvbench.cli.waits", "List the decoder's wait sites; fit the cost of a wait."),
    "suites": Entry("kvbench.cli.suites", "List the bundled suites."),
}
"""Listed in ``SECTIONS``; what stands in none of them comes last."""

SECTIONS: dict[str, tuple[str, ...]] = {
    "Measure": ("ab", "gate", "run", "load"),
    "Look at it": ("show", "profile", "predict", "compare", "history", "bisect"),
    "Share it": ("export", "bundle", "verify"),
    "The machine and the method": ("doctor", "calibrate", "validate", "selfcheck", "waits"),
    "Suites, models, disk": ("init", "suites", "assets", "clean"),
}


def sections() -> list[tuple[str, list[str]]]:
    """(title, names of commands) of every section that has any."""
    named = [
        (title, [name for name in names if name in COMMANDS]) for title, names in SECTIONS.items()
    ]
    placed = {name for _, names in named for name in names}
    named.append(("Further", [name for name in COMMANDS if name not in placed]))
    return [(title, names) for title, names in named if names]
