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
    return shlex.quote(stored_at(summary))


def stored_at(summary: Summary) -> str:
    """The experiment's directory, as the command that began it named its place."""
    words = iter(summary.command)
    root = "results"
    for word in words:
        if word == "--out":
            root = next(words, root)
        elif word.startswith("--out="):
            root = word.removeprefix("--out=")
    return f"{root.rstrip('/')}/{summary.run}"
