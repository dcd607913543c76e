"""``kvbench selfcheck``: the bench against itself, on this machine."""

from __future__ import annotations

import click

from kvbench.cli.output import json_option, print_json

CHECKS = ("overhead", "repeat", "effect", "aa")


@click.command("selfcheck")
@click.argument("checks", nargs=-1, type=click.Choice(CHECKS))
@click.option("--aa", "aa_count", type=click.IntRange(1), default=200, show_default=True)
@click.option("--effect", "effect_count", type=click.IntRange(1), default=40, show_default=True)
@click.option("--load", type=click.FloatRange(0, 1), default=0.5, show_default=True)
@click.option("--blocks", type=click.IntRange(2), default=4, show_default=True, help="Of the A/A.")
@json_option
def command(
    checks: tuple[str, ...],
    aa_count: int,
    effect_count: int,
    load: float,
    blocks: int,
    as_json: bool,
) -> None:
    """Test the bench itself on this machine.

    Real processes with a known difference: overhead per run, the same A/B five times, a planted
    effect at the n that calibration names, and A/A under a stated competing load. Prints Markdown;
    takes up to half an hour.
    """
    from kvbench.environment.doctor import load_findings, scatter_findings
    from kvbench.environment.fingerprint import machine
    from runner import selfcheck

    def tell(text: str) -> None:
        click.echo(text, err=True)

    facts = machine()
    noisy = [*load_findings(facts), *scatter_findings()]
    doctor = [f"{facts['cpu']}, {facts['cpus']} CPUs"]
    doctor += [f"{finding.what}: {finding.measured}" for finding in noisy]
    outcomes = []
    for check in checks or CHECKS:
        if check == "overhead":
            outcomes.append(selfcheck.check_overhead(40))
        elif check == "repeat":
            outcomes.append(selfcheck.check_repeat(5, 0.10, tell))
        elif check == "effect":
            outcomes.append(selfcheck.check_effect(effect_count, tell))
        else:
            outcomes.append(selfcheck.check_aa(aa_count, blocks, load, tell))
    if as_json:
        print_json({"machine": doctor, "checks": [outcome._asdict() for outcome in outcomes]})
        return
    click.echo(selfcheck.markdown(outcomes, doctor), nl=False)
