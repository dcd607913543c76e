"""``kvbench ab``: gate, A/B blocks, verdict."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvbench.cli.output import json_option, print_json, say, watch

if TYPE_CHECKING:
    from runner.cluster import DaskExecutor


@click.command("ab")
@click.argument("suite", required=False)
@click.option("--resume", metavar="RUN", help="Go on with a stored experiment.")
@click.option("--resume-anyway", is_flag=True, help="Go on although something changed.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option(
    "--require",
    type=click.Choice(["faster", "equivalent", "not-slower"]),
    help="Exit 1 if that is not shown, 3 if nothing is.",
)
@click.option("--model", help="Another model than the suite's.")
@click.option("--blocks", type=int, help="Another even number of blocks.")
@click.option("--delta", type=float, help="Another margin, e.g. 0.01.")
@click.option(
    "--other-cores", type=float, help="Cores that other processes may use before it is INVALID."
)
@click.option("--executor", type=click.Choice(["local", "dask"]), default="local")
@click.option("--address", help="The Dask scheduler, e.g. tcp://host:8786.")
@json_option
def command(
    suite: str | None,
    resume: str | None,
    resume_anyway: bool,
    out: Path,
    require: str | None,
    model: str | None,
    blocks: int | None,
    delta: float | None,
    other_cores: float | None,
    executor: str,
    address: str | None,
    as_json: bool,
) -> int:
    """Gate a suite's arms, run its blocks, judge.

    SUITE is a bundled name or a TOML file (default: main).
    """
    from kvbench.cli.pull_progress import shown_pulls
    from runner import ab

    overrides = ab.Overrides(model, blocks, delta, other_cores)
    if resume is not None and (require is not None or any(x is not None for x in overrides)):
        raise click.UsageError("--resume goes on with the stored plan; other options cannot change")
    if (executor == "dask") != (address is not None):
        raise click.UsageError("--executor dask and --address go together")
    place: list[Path] = []
    try:
        with shown_pulls(), _executor(address) as where:
            if resume is not None:
                done = ab.go_on(
                    resume,
                    watch,
                    root=out,
                    suite_ref=suite,
                    anyway=resume_anyway,
                    executor=where,
                    begun=place.append,
                )
            else:
                done = ab.start(
                    "main" if suite is None else suite,
                    watch,
                    root=out,
                    command=["kvbench", *sys.argv[1:]],
                    require=require,
                    overrides=overrides,
                    executor=where,
                    begun=place.append,
                )
    except KeyboardInterrupt:
        if place:
            click.echo(f"stopped; go on with: kvbench ab --resume {place[0]}", err=True)
        raise
    if as_json:
        print_json(done.summary)
    else:
        from kvbench.report.terminal import console, print_summary

        print_summary(done.summary, console())
        say(f"reports: {done.directory}/report.md, {done.directory}/report.html", hang=9)
    return done.summary.exit_code


def _executor(address: str | None) -> AbstractContextManager[DaskExecutor | None]:
    """Where blocks run; None: here."""
    if address is None:
        return nullcontext()
    from runner.cluster import DaskExecutor

    return DaskExecutor(address)
