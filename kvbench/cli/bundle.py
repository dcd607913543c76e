"""``kvbench bundle``: one file with the evidence."""

from __future__ import annotations

from pathlib import Path

import click

from kvbench.cli.output import json_option, print_json


@click.command("bundle")
@click.argument("run")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: RUN.kvbench.zip")
@click.option("--root", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@json_option
def command(run: str, output: Path | None, root: Path, as_json: bool) -> None:
    """Pack a stored experiment as evidence.

    RUN is its directory or its id. The file holds plan, journal, environments, hashes of the
    programs, gate reports and reports; `kvbench verify` judges it again.
    """
    from runner.bundle import write_bundle
    from runner.store import find_run

    directory = find_run(run, root)
    target = output or Path(f"{directory.name}.kvbench.zip")
    written = write_bundle(directory, target)
    if as_json:
        print_json({"bundle": str(written), "bytes": written.stat().st_size})
    else:
        click.echo(written)
