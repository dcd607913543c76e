"""How to repeat an experiment: the exact commands."""

from __future__ import annotations

import shlex

from kvbench.records import Summary


def commands(summary: Summary) -> list[tuple[str, str]]:
    """(what it does, command) in the order in which a reader would run them."""
    again = ("Measure again", shlex.join(summary.command))
    show = ("Draw these tables again", f"kvbench show {_run(summary)}")
    if summary.finished is None:
        return [("Go on where it stopped", f"kvbench ab --resume {_run(summary)}"), again, show]
    return [again, show]


def _run(summary: Summary) -> str:
    return shlex.quote(f"results/{summary.run}")
