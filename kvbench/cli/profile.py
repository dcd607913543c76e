"""``kvbench profile``: what each arm asks of its device, token by token."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvbench.cli.output import json_option, print_json

if TYPE_CHECKING:
    from kvbench.records.capture import Capture
    from runner.profile import Recorder


@click.command("profile")
@click.argument("suite", required=False)
@click.option("--cell", help="Cell of the suite's grid; the first unless given.")
@click.option(
    "--with",
    "recorder",
    type=click.Choice(["auto", "nsys", "oplog"]),
    default="auto",
    show_default=True,
    help="What records: Nsight Systems, or the device's own op log.",
)
@click.option(
    "--import",
    "imported",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read an nsys sqlite export or a stored capture instead of running; may be repeated.",
)
@click.option("--tokens", type=click.IntRange(min=1), help="Tokens inside each imported file.")
@click.option("--out", type=click.Path(path_type=Path), help="Where to write the files.")
@json_option
def command(
    suite: str | None,
    cell: str | None,
    recorder: Recorder,
    imported: tuple[Path, ...],
    tokens: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Count API calls, overlap and gaps; draw the timeline.

    SUITE is a bundled name or a TOML file: each arm of one cell runs once, in a process and a
    capture of its own, warm-up excluded. These runs are never timed. Captures, a trace for
    ui.perfetto.dev and the timeline's picture are written to a new folder in results/, or to --out.

    With --import nothing runs; the first file is the baseline, and files are written only to --out.
    """
    if bool(suite) == bool(imported):
        raise click.UsageError("give either a SUITE to run or --import FILE to read")
    from kvbench.report import profile_view
    from kvbench.report.profile_files import write_profile

    if suite:
        if tokens is not None:
            raise click.UsageError("--tokens belongs to --import")
        captures = _run(suite, cell, recorder)
        out = out or Path("results") / f"{time.strftime('%Y%m%d-%H%M%S')}-profile"
    else:
        if cell is not None or recorder != "auto":
            raise click.UsageError("--cell and --with belong to a SUITE")
        from kvbench.analysis.imports import read_captures

        captures = read_captures(imported, tokens)
    written = write_profile(captures, out) if out else []
    if as_json:
        print_json(profile_view.as_document(captures))
        return
    from kvbench.report.terminal import console

    profile_view.print_tables(profile_view.tables(captures), console())
    for path in written:
        click.echo(f"wrote {path}", err=True)


def _run(suite: str, cell: str | None, recorder: Recorder) -> list[Capture]:
    from kvbench.report.progress import Progress
    from runner.profile import profile_suite

    with Progress("profile", 1) as progress:
        return profile_suite(suite, cell=cell, recorder=recorder, doing=progress.note)
