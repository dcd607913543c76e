"""``kvbench verify``: a bundle, judged again."""

from __future__ import annotations

from pathlib import Path

import click

from kvbench.cli.output import json_option, print_json


@click.command("verify")
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def command(file: Path, as_json: bool) -> int:
    """Judge a bundle again, from its raw runs.

    Works offline. Exits 0 if it comes to the same verdicts, 1 if not, 2 for a damaged file.
    """
    from runner.bundle import verify_bundle

    verified = verify_bundle(file)
    if as_json:
        print_json({"differences": verified.differences, "summary": verified.found})
        return 1 if verified.differences else 0
    for cell in verified.found.cells:
        click.echo(f"{cell.name}: gate {cell.gate.outcome}")
        for comparison in cell.comparisons:
            click.echo(f"  {comparison.arm}: {comparison.verdict}: {comparison.reason}")
    for difference in verified.differences:
        click.echo(f"DIFFERS: {difference}")
    if not verified.differences:
        click.echo("the raw runs come to the verdicts that the bundle claims")
    return 1 if verified.differences else 0
