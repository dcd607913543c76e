"""How to repeat an experiment: the exact commands."""

from __future__ import annotations

import shlex

from kvbench.records import Summary


def commands(summary: Summary) -> list[tuple[str, str]]:
    """(what it does, command) in the order in which a reader would run them."""
    steps = [("Install the same version", f"pip install kvbench=={summary.kvbench}")]
    if summary.finished is None:
        steps.append(("Go on where it stopped", f"kvbench ab --resume {_run(summary)}"))
    steps.append(("Measure again", shlex.join(summary.command)))
    steps.append(("Draw these tables again", f"kvbench show {_run(summary)}"))
    return steps


def _run(summary: Summary) -> str:
    return shlex.quote(f"results/{summary.run}")
