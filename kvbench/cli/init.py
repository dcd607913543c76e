"""``kvbench init``: a starter suite to edit."""

from __future__ import annotations

from pathlib import Path

import click

KINDS = ("builds", "flags", "urls", "reference")


@click.command("init")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace a file that is there already.")
def command(kind: str, file: Path | None, force: bool) -> None:
    """Write a starter suite to edit.

    For two llama-server builds, two flag sets, two URLs, or the reference decoder. FILE defaults
    to KIND.toml.
    """
    from kvbench.spec.starters import starter

    file = file or Path(f"{kind}.toml")
    try:
        with file.open("w" if force else "x", encoding="utf-8") as out:
            out.write(starter(kind, str(file)))
    except FileExistsError:
        raise click.UsageError(f"{file} is there already; --force replaces it") from None
    click.echo(f"{file}: edit it, then run: kvbench ab {file}")
