"""``kvbench gate``: is it exact?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.output import json_option, print_json

if TYPE_CHECKING:
    from kvbench.records.gate import GateReport


@click.command("gate")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--quick", is_flag=True, help="Fewer kinds, lengths and depths; the notes say which.")
@click.option(
    "--model", default="", metavar="REF", help="Model to gate on; default: each gate's own."
)
@click.option(
    "--inject",
    multiple=True,
    metavar="FAULT[=VALUE]",
    help="Plant a fault into the arms under test; the gate must then fail.",
)
@click.option("--seed", default=1, show_default=True, help="Seed of everything a gate draws.")
@click.option(
    "--timeout",
    default=600.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds one run of an arm may take.",
)
@click.option(
    "--junit",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also write JUnit XML.",
)
@click.option("--list", "listing", is_flag=True, help="List the gates and stop.")
@click.option("--verbose", is_flag=True, help="Print the checks that passed too.")
@json_option
def command(
    names: tuple[str, ...],
    quick: bool,
    model: str,
    inject: tuple[str, ...],
    seed: int,
    timeout: float,
    junit: Path | None,
    listing: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Say whether outputs are exact, and where they differ.

    Exit code 0 if all passed, 4 for a mismatch or what cannot be gated, 6 if an arm failed.
    """
    from gates.registry import GateOptions, load
    from gates.registry import names as all_names
    from kvbench.records.gate import worst_exit_code
    from kvbench.report.gates import gate_lines
    from kvbench.report.junit import junit as as_junit

    if listing:
        _list(as_json)
        return 0
    options = GateOptions(
        model=model,
        quick=quick,
        inject=inject,
        seed=seed,
        timeout_s=timeout,
        progress=lambda note: click.echo(f"  {note}", err=True),
    )
    chosen = [(name, load(name)) for name in names or all_names(default_only=True)]
    reports = []
    for name, run in chosen:
        click.echo(f"gate {name}", err=True)
        reports.append(run(options))
        if junit is not None:
            junit.write_bytes(as_junit(reports))
        if not as_json:
            for line in gate_lines(reports[-1:], verbose=verbose):
                click.echo(line)
    if as_json:
        print_json([_document(report) for report in reports])
    return worst_exit_code(reports)


def _document(report: GateReport) -> dict[str, Any]:
    """The report with what it concludes."""
    import msgspec

    facts: dict[str, Any] = msgspec.to_builtins(report)
    return {"outcome": report.outcome, "message": report.message, **facts}


def _list(as_json: bool) -> None:
    from gates.registry import GATES, names

    rows = [
        {
            "name": name,
            "description": GATES[name].help if name in GATES else "of another package",
            "default": name in GATES and GATES[name].default,
        }
        for name in names()
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        mark = "" if row["default"] else "  (only when named)"
        click.echo(f"{row['name']:<14} {row['description']}{mark}")
