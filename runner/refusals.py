"""What a plan asks for that cannot be: refused before anything of the experiment is written."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.engines.arm import PROGRAM, REFERENCE
from kvbench.errors import UsageError
from kvbench.spec import Cell
from runner.receipt import program_path
from runner.tasks import arm_of, task_of


def refuse_unusable(cells: Sequence[Cell], source: str, *, here: bool = True) -> None:
    """Raise ``UsageError`` for an unknown engine, a setting of the reference decoder that it would
    refuse, and for the first cell's model or prompts if they cannot be had.

    ``source`` names the suite. ``here``: arms run on this machine, so their programs must be on it.
    Models and texts that the first cell needs are pulled here.
    """
    from kvbench.decoder.settings import parse

    seen: set[str] = set()
    for cell in cells:
        for spec in cell.arms:
            facts = repr((spec.name, spec.engine, spec.settings))
            if facts in seen:
                continue
            seen.add(facts)
            arm = arm_of(spec, cell, None)
            if spec.engine == REFERENCE:
                # An arm's process does not see this one's KVBENCH_ variables.
                parse(arm.settings, source=f"{source}, arm {spec.name}", environ={})
            if here and spec.engine == PROGRAM and program_path(arm) is None:
                raise UsageError(
                    f"{source}, arm {spec.name}: command: {arm.command[0]!r} was not found; "
                    "give a path or install it"
                )
    task_of(cells[0])
