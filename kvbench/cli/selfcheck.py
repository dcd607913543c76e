"""``kvbench selfcheck``: the bench against itself, on this machine."""

from __future__ import annotations

import time
from pathlib import Path

import click

from kvbench.cli.output import json_option, print_json

CHECKS = ("overhead", "repeat", "effect", "aa")


@click.command("selfcheck")
@click.argument("checks", nargs=-1, type=click.Choice(CHECKS))
@click.option("--aa", "aa_count", type=click.IntRange(1), default=200, show_default=True)
@click.option("--effect", "effect_count", type=click.IntRange(1), default=40, show_default=True)
@click.option("--load", type=click.FloatRange(0, 1), default=0.5, show_default=True)
@click.option("--blocks", type=click.IntRange(2), default=4, show_default=True, help="Of the A/A.")
@click.option(
    "--append",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also add the record to this file; what it holds stays.",
)
@json_option
def command(
    checks: tuple[str, ...],
    aa_count: int,
    effect_count: int,
    load: float,
    blocks: int,
    target: Path | None,
    as_json: bool,
) -> int:
    """Test the bench itself on this machine.

    Real processes with a known difference: overhead per run, the same A/B five times, a planted
    effect at the n that calibration names, and A/A under a stated competing load. Prints Markdown;
    exits 1 if an aim is not met. Takes about ten minutes on a quiet machine, longer on a busy one.
    """
    from kvbench.environment.doctor import load_findings, scatter_findings
    from kvbench.environment.fingerprint import machine
    from runner import selfcheck

    def tell(text: str) -> None:
        click.echo(text, err=True)

    if target is not None:
        selfcheck.read_records(target)  # refused now, not after ten minutes
    facts = machine()
    noisy = [*load_findings(facts), *scatter_findings()]
    doctor = [f"{facts['cpu']}, {facts['cpus']} CPUs"]
    doctor += [f"{finding.what}: {finding.measured}" for finding in noisy]
    started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    wanted = checks or CHECKS
    floor = selfcheck.calibrated(tell) if {"repeat", "effect"} & set(wanted) else None
    outcomes = []
    for check in wanted:
        if check == "overhead":
            outcomes.append(selfcheck.check_overhead(40))
        elif check == "aa":
            outcomes.append(selfcheck.check_aa(aa_count, blocks, load, tell))
        else:
            assert floor is not None
            outcomes.append(
                selfcheck.check_repeat(5, floor, tell)
                if check == "repeat"
                else selfcheck.check_effect(effect_count, floor, tell)
            )
    record = selfcheck.markdown(outcomes, doctor, started)
    if as_json:
        print_json({"machine": doctor, "checks": [outcome._asdict() for outcome in outcomes]})
    else:
        click.echo(record, nl=False)
    if target is not None:
        selfcheck.append(record, target)
    return 0 if all(outcome.met for outcome in outcomes) else 1
