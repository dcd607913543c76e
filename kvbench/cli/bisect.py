"""``kvbench bisect``: which revision of an arm changed its bytes or its speed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from kvbench.cli.output import json_option, print_json


@click.command("bisect")
@click.argument("suite")
@click.option("--arm", required=True, help="The arm whose repository (its cwd) is searched.")
@click.option("--good", required=True, metavar="REV")
@click.option("--bad", default="HEAD", show_default=True, metavar="REV")
@click.option("--by", type=click.Choice(["bytes", "speed"]), default="bytes", show_default=True)
@click.option("--build", metavar="COMMAND", help="Run in each revision's work tree, in its cwd.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@json_option
def command(
    suite: str,
    arm: str,
    good: str,
    bad: str,
    by: Literal["bytes", "speed"],
    build: str | None,
    out: Path,
    as_json: bool,
) -> None:
    """Find the revision that changed bytes or speed.

    Compares each revision with the good one: by the exactness gate, or by an A/B experiment.
    """
    from runner.bisect import bisect

    found = bisect(
        suite,
        arm,
        good,
        bad,
        by=by,
        build=build,
        root=out,
        tell=lambda text: click.echo(text, err=True),
    )
    if as_json:
        print_json(found._asdict())
        return
    click.echo(f"{found.revision} {found.subject}")
    click.echo(f"  {found.reason}")
