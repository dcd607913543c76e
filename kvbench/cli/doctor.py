"""``kvbench doctor``: what makes this machine noisy."""

from __future__ import annotations

from pathlib import Path

import click

from kvbench.cli.output import json_option, print_json

_MARKS = {"fine": "  ", "note": "- ", "warning": "! "}


@click.command("doctor")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@json_option
def command(out: Path, as_json: bool) -> None:
    """Say what makes this machine noisy.

    And what to do about it, with the measured size of each where it can be measured. Takes a few
    seconds.
    """
    from kvbench.environment.doctor import examine

    findings = examine(out)
    if as_json:
        print_json(findings)
        return
    for finding in findings:
        measured = f": {finding.measured}" if finding.measured else ""
        click.echo(f"{_MARKS[finding.severity]}{finding.what}{measured}")
        if finding.advice:
            click.echo(f"    {finding.advice}")
    warnings = sum(1 for finding in findings if finding.severity == "warning")
    click.echo(f"{warnings} warnings" if warnings else "nothing stands in the way of a measurement")
