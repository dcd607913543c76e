"""``kvbench validate``: the statistics, checked by simulation."""

from __future__ import annotations

import click


@click.command("validate")
@click.option(
    "--experiments",
    type=click.IntRange(1000, 1_000_000),
    default=20_000,
    show_default=True,
    help="Simulated experiments a cell.",
)
def command(experiments: int) -> int:
    """Check the verdicts' error rates by simulation.

    Prints Markdown; exits 1 if a claim of the method does not hold.
    """
    from kvbench.analysis import validation

    rows = [*validation.false_positives(experiments), *validation.power(experiments)]
    findings = validation.check(rows)
    click.echo(validation.markdown(rows, findings, experiments), nl=False)
    return 0 if all(finding.holds for finding in findings) else 1
