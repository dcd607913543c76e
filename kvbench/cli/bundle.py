"""``kvbench bundle``: one file with the evidence."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("bundle")
@click.argument("run")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: RUN.kvbench.zip")
@click.option("--root", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
def command(run: str, output: Path | None, root: Path) -> None:
    """Pack a stored experiment as evidence.

    RUN is its directory or its id. The file holds plan, journal, environments, hashes of the
    programs, gate reports and reports; `kvbench verify` judges it again.
    """
    from runner.bundle import write_bundle
    from runner.store import find_run

    directory = find_run(run, root)
    target = output or Path(f"{directory.name}.kvbench.zip")
    click.echo(write_bundle(directory, target))
