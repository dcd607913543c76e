"""``kvbench show``: a stored experiment, drawn again."""

from __future__ import annotations

from pathlib import Path

import click

from kvbench.cli.output import json_option, print_json


@click.command("show")
@click.argument("run")
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Where experiments are stored.",
)
@click.option(
    "--judge", is_flag=True, help="Judge the journal again instead of trusting summary.json."
)
@click.option("--reports", is_flag=True, help="Write report.md and report.html again.")
@json_option
def command(run: str, root: Path, judge: bool, reports: bool, as_json: bool) -> int:
    """Draw a stored experiment's tables again.

    RUN is its directory or its id. The exit code is the experiment's.
    """
    from runner.store import SUMMARY_NAME, find_run, judge_again, load_summary

    directory = find_run(run, root)
    if not judge and not (directory / SUMMARY_NAME).exists():
        click.echo(f"{directory}: not finished; judging what its journal holds", err=True)
        judge = True
    summary = judge_again(directory) if judge else load_summary(directory)
    if reports:
        from kvbench.report.files import write_reports

        for path in write_reports(summary, directory):
            click.echo(f"wrote {path}", err=True)
    if as_json:
        print_json(summary)
    else:
        from kvbench.report.terminal import console, print_summary

        print_summary(summary, console())
    return summary.exit_code
