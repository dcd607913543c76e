"""``kvbench validate``: the statistics, checked by simulation."""

from __future__ import annotations

import click

from kvbench.cli.output import json_option, print_json


@click.command("validate")
@click.option(
    "--experiments",
    type=click.IntRange(1000, 1_000_000),
    default=20_000,
    show_default=True,
    help="Simulated experiments a cell.",
)
@json_option
def command(experiments: int, as_json: bool) -> int:
    """Check the verdicts' error rates by simulation.

    Prints Markdown; exits 1 if a claim of the method does not hold.
    """
    from kvbench.analysis import validation

    rows = [*validation.false_positives(experiments), *validation.power(experiments)]
    findings = validation.check(rows)
    if as_json:
        claims = [
            {"claim": f.claim.text, "lowest": f.lowest, "highest": f.highest, "holds": f.holds}
            for f in findings
        ]
        print_json({"claims": claims, "rows": rows})
    else:
        click.echo(validation.markdown(rows, findings, experiments), nl=False)
    return 0 if all(finding.holds for finding in findings) else 1
