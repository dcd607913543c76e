"""``kvbench profile``: what each arm asks of its device, token by token."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvbench.cli.output import json_option, print_json

if TYPE_CHECKING:
    from kvbench.records.capture import Capture
    from kvbench.report.progress import Progress
    from runner.profile import Recorder


@click.command("profile")
@click.argument("suite", required=False)
@click.option("--run", metavar="RUN", help="A stored experiment; its report gets the timeline.")
@click.option("--cell", help="Cell of the suite's grid; the first unless given.")
@click.option(
    "--with",
    "recorder",
    type=click.Choice(["auto", "nsys", "cupti", "oplog"]),
    default="auto",
    show_default=True,
    help="What records: Nsight Systems, CUPTI, or the device's own op log.",
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
    run: str | None,
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
    With --run they go to the experiment's own folder, and its report is drawn again.

    With --import nothing runs; the first file is the baseline, and files are written only to --out.
    """
    if [bool(suite), bool(run), bool(imported)].count(True) != 1:
        raise click.UsageError("give one of SUITE, --run RUN and --import FILE")
    if imported and (cell is not None or recorder != "auto"):
        raise click.UsageError("--cell and --with belong to a SUITE or a RUN")
    if tokens is not None and not imported:
        raise click.UsageError("--tokens belongs to --import")
    from kvbench.report.profile_files import write_profile

    if imported:
        from kvbench.analysis.imports import read_captures

        captures = read_captures(imported, tokens)
        written = write_profile(captures, out) if out else []
    elif run:
        captures, written = _profile_run(run, cell, recorder, out)
    else:
        from runner.profile import profile_suite

        with _progress() as progress:
            captures = profile_suite(str(suite), cell=cell, recorder=recorder, doing=progress.note)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        written = write_profile(captures, out or Path("results") / f"{stamp}-profile")
    _show(captures, as_json)
    for path in written:
        click.echo(f"wrote {path}", err=True)


def _profile_run(
    run: str, cell: str | None, recorder: Recorder, out: Path | None
) -> tuple[list[Capture], list[Path]]:
    """Profile a stored experiment, and draw its reports again with the timeline."""
    from kvbench.report.files import PROFILE, write_reports
    from kvbench.report.profile_files import write_profile
    from runner.profile import profile_run
    from runner.store import find_run, load_summary

    directory = find_run(run)
    summary = load_summary(directory)
    with _progress() as progress:
        captures = profile_run(directory, cell=cell, recorder=recorder, doing=progress.note)
    written = write_profile(captures, out or directory / PROFILE)
    return captures, [*written, *write_reports(summary, directory)]


def _progress() -> Progress:
    from kvbench.report.progress import Progress

    return Progress("profile", 1)


def _show(captures: list[Capture], as_json: bool) -> None:
    from kvbench.report import profile_view
    from kvbench.report.terminal import console

    if as_json:
        print_json(profile_view.as_document(captures))
    else:
        profile_view.print_tables(profile_view.tables(captures), console())
