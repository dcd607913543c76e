"""``kvbench history``: one cell over many experiments."""

from __future__ import annotations

import time
from pathlib import Path

import click

from kvbench.cli.output import json_option, print_json


@click.command("history")
@click.argument("suite")
@click.option("--cell", help="Which cell, if there are several.")
@click.option("--arm", help="Which arm, if there are several.")
@click.option("--root", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@json_option
def command(suite: str, cell: str | None, arm: str | None, root: Path, as_json: bool) -> None:
    """Show one cell over many experiments.

    Marks the experiments at which the gain steps, and where environment or workload changed.
    """
    from kvbench.report.words import number, percent
    from runner.across import history

    points = history(root, suite, cell, arm)
    if as_json:
        print_json([point._asdict() for point in points])
        return
    for point in points:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(point.started))
        c = point.comparison
        low, high = c.ci95 or (None, None)
        marks = ["<- STEP"] if point.step else []
        if point.changed:
            marks.append(f"changed: {', '.join(point.changed)}")
        gain = f"{percent(c.ratio):>8} ({percent(low)} to {percent(high)})"
        speed = f"{number(point.speed):>8} tok/s"
        line = f"{when}  {gain}  {speed}  {c.verdict:<12} {point.run} {'; '.join(marks)}"
        click.echo(line.rstrip())
