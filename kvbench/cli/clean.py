"""``kvbench clean``: caches and old experiments, by age and size."""

from __future__ import annotations

import re
from pathlib import Path

import click

from kvbench.cli.output import json_option, print_json

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@click.command("clean")
@click.option("--caches", is_flag=True, help="Snapshots and weight caches of kvbench.")
@click.option("--results", type=click.Path(path_type=Path), help="Experiments in this directory.")
@click.option("--older-than", metavar="DAYS", type=click.FloatRange(min=0), default=None)
@click.option("--down-to", metavar="SIZE", help="Oldest first until this is left, e.g. 2G.")
@click.option("--yes", is_flag=True, help="Delete; without it, only say what would go.")
@json_option
def command(
    caches: bool,
    results: Path | None,
    older_than: float | None,
    down_to: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove caches or old experiments.

    Says what would go; deletes with --yes. An experiment that is being written is never touched.
    """
    from kvbench.report.words import size
    from runner.clean import delete, select

    if not caches and results is None:
        raise click.UsageError("say what: --caches, --results DIR, or both")
    if results is not None and older_than is None and down_to is None:
        raise click.UsageError("--results needs --older-than or --down-to")
    limit = None if down_to is None else _bytes(down_to)
    chosen = select(caches, results, older_than, limit)
    if as_json:
        if yes:
            delete(chosen)
        items = [{**item._asdict(), "path": str(item.path)} for item in chosen]
        print_json({"deleted": yes, "items": items})
        return
    for item in chosen:
        click.echo(f"{'removed' if yes else 'would remove'} {item.path} ({size(item.bytes)})")
    if yes:
        delete(chosen)
    total = size(sum(item.bytes for item in chosen))
    click.echo(f"{len(chosen)} items, {total}{'' if yes else '; nothing was deleted, add --yes'}")


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", text.strip().lower())
    if match is None:
        raise click.UsageError(f"--down-to: {text!r} is not a size such as 500M or 2G")
    return int(float(match[1]) * _UNITS[match[2]])
