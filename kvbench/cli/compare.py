"""``kvbench compare``: two stored experiments."""

from __future__ import annotations

from pathlib import Path

import click

from kvbench.cli.output import json_option, print_json


@click.command("compare")
@click.argument("before")
@click.argument("after")
@click.option("--root", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@json_option
def command(before: str, after: str, root: Path, as_json: bool) -> None:
    """Compare the gains of two stored experiments.

    Refuses what is not comparable and names the field. Gains are compared, block by block free of
    drift; speeds of different days are only shown.
    """
    from kvbench.report.words import number, percent
    from runner.across import compare_runs
    from runner.store import find_run, load_summary

    one, two = (load_summary(find_run(run, root)) for run in (before, after))
    found = compare_runs(one, two)
    if as_json:
        print_json([arm._asdict() for arm in found])
        return
    for arm in found:
        speeds = " then ".join(f"{number(speed)} tok/s" for speed in arm.speeds)
        click.echo(f"{arm.cell}: {arm.arm} against {arm.before.baseline}: {speeds}")
        gains = f"{percent(arm.before.ratio)} then {percent(arm.after.ratio)}"
        if arm.change is None:
            click.echo(f"  gain {gains}; not judged: one of the two is INVALID or too short")
            continue
        low, high = arm.change.ci95
        click.echo(
            f"  gain {gains}: {percent(arm.change.ratio)} "
            f"(95% interval {percent(low)} to {percent(high)}): {arm.change.verdict}"
        )
