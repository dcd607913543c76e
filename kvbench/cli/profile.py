"""``kvbench profile``: what each arm asks of its device, token by token."""

from __future__ import annotations

from pathlib import Path

import click

from kvbench.cli.output import json_option, print_json


@click.command("profile")
@click.option(
    "--import",
    "imported",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    required=True,
    help="An nsys sqlite export, or a stored capture; may be repeated.",
)
@click.option("--tokens", type=click.IntRange(min=1), help="Tokens inside each imported file.")
@click.option("--out", type=click.Path(path_type=Path), help="Write captures, trace, picture here.")
@json_option
def command(
    imported: tuple[Path, ...],
    tokens: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Count API calls, overlap and gaps; draw the timeline.

    The first file is the baseline.
    """
    from kvbench.analysis.imports import read_captures
    from kvbench.report import profile_view
    from kvbench.report.profile_files import write_profile

    captures = read_captures(imported, tokens)
    written = write_profile(captures, out) if out else []
    if as_json:
        print_json(profile_view.as_document(captures))
        return
    from kvbench.report.terminal import console

    profile_view.print_tables(profile_view.tables(captures), console())
    for path in written:
        click.echo(f"wrote {path}")
