"""``kvbench gate``: is it exact?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.output import json_option, print_json, say

if TYPE_CHECKING:
    from gates.registry import GateOptions
    from kvbench.records.gate import GateReport


@click.command("gate")
@click.argument("names", nargs=-1, metavar="[GATE|SUITE]...")
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
@click.option(
    "--must-fail",
    metavar="ARM[:KEY=VALUE]",
    help="Negative control for a SUITE: an arm, or a setting, that is known to be wrong.",
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
@click.option(
    "--set",
    "assigned",
    multiple=True,
    metavar="NAME=VALUE",
    help="A gate's own setting, such as scenario=shift or ablate=one_slot_less.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Trace a failing scenario to its first differing operation and shrink it.",
)
@click.option("--list", "listing", is_flag=True, help="List the gates and stop.")
@click.option("--verbose", is_flag=True, help="Print the checks that passed too.")
@json_option
def command(
    names: tuple[str, ...],
    quick: bool,
    model: str,
    inject: tuple[str, ...],
    must_fail: str | None,
    seed: int,
    timeout: float,
    junit: Path | None,
    assigned: tuple[str, ...],
    explain: bool,
    listing: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Say whether outputs are exact, and where they differ.

    Exit code 0 if all passed, 4 for a mismatch or what cannot be gated, 6 if an arm failed.
    """
    from gates.registry import GateOptions
    from kvbench.cli.pull_progress import shown_pulls
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
        settings=_settings(assigned),
        seed=seed,
        timeout_s=timeout,
        progress=lambda note: click.echo(f"  {note}", err=True),
    )
    if junit is not None:
        _require_writable(junit)
    given = {"--model": model, "--inject": inject, "--set": assigned}
    chosen = [
        (name, _runner(name, must_fail, options, explain=explain))
        for name in gates_to_run(names, [flag for flag, value in given.items() if value])
    ]
    reports: list[GateReport] = []
    for name, run in chosen:
        click.echo(f"gate {name}", err=True)
        with shown_pulls():
            found = run()
        reports += found
        if junit is not None:
            junit.write_bytes(as_junit(reports))
        if not as_json:
            for line in gate_lines(found, verbose=verbose):
                click.echo(line)
    if as_json:
        print_json([_document(report) for report in reports])
    if explain:
        _explain(options)
    return worst_exit_code(reports)


def gates_to_run(named: tuple[str, ...], given: list[str]) -> list[str]:
    """The gates to run: those that are named, or those that run unasked and take what is given.

    Raises click.UsageError where an option would be passed over.
    """
    from gates.registry import names, takes

    for name in named:
        for flag in given:
            if not takes(name, [flag]):
                able = ", ".join(other for other in names() if takes(other, [flag]))
                raise click.UsageError(f"gate {name} takes no {flag}; these do: {able}")
    if named:
        return list(named)
    if "--set" in given:
        raise click.UsageError("--set is one gate's own: name the gate, kvbench gate NAME --set …")
    unasked = names(default_only=True)
    left_out = [name for name in unasked if not takes(name, given)]
    if left_out:
        click.echo(f"left out, as they take no {', '.join(given)}: {', '.join(left_out)}", err=True)
    return [name for name in unasked if name not in left_out]


def _runner(
    name: str, must_fail: str | None, options: GateOptions, *, explain: bool
) -> Callable[[], list[GateReport]]:
    """A gate by name, or the gate of a suite's own arms. Refuses unusable ones before any runs."""
    from gates.registry import load
    from gates.registry import names as all_names
    from kvbench.spec import load_suite, suite_names

    if name not in all_names() and (name in suite_names() or "/" in name or "." in name):
        from runner.suite_gate import KnownBad, cells_under, gate_suite

        suite, cells = load_suite(name)
        cells = cells_under(options, cells)
        if explain:
            raise click.UsageError("--explain goes with the scenarios of a gate, not with a SUITE")
        bad = KnownBad.parse(must_fail) if must_fail is not None else None
        return lambda: gate_suite(suite, cells, must_fail=bad, progress=options.progress)
    gate = load(name)
    if must_fail is not None:
        raise click.UsageError("--must-fail goes with a SUITE; a gate has --inject")
    return lambda: [gate(options)]


def _require_writable(path: Path) -> None:
    """Refuse a file that cannot be written, before the gate has run for minutes."""
    import os

    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise click.UsageError(f"--junit: {path} cannot be written")


def _document(report: GateReport) -> dict[str, Any]:
    """The report with what it concludes."""
    import msgspec

    facts: dict[str, Any] = msgspec.to_builtins(report)
    return {"outcome": report.outcome, "message": report.message, **facts}


def _settings(assigned: tuple[str, ...]) -> dict[str, Any]:
    """``name=value`` pairs; numbers, true and false are taken as such."""
    from kvbench.errors import SettingError

    words: dict[str, Any] = {"true": True, "false": False}
    out: dict[str, Any] = {}
    for pair in assigned:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise SettingError("--set", pair, "NAME=VALUE")
        number = int(text) if text.lstrip("-").isdigit() else text
        out[name] = words.get(text, number)
    if isinstance(out.get("ablate"), str):
        out["ablate"] = tuple(out["ablate"].split(","))
    return out


def _explain(options: GateOptions) -> None:
    """Print where each failing scenario first goes wrong."""
    from gates.transport.checks import chosen, planted
    from gates.transport.explain import explain

    for scenario in chosen(options):
        click.echo(f"explain: {scenario.name}", err=True)
        found = explain(scenario, lambda: planted(options))
        if found is not None:
            click.echo(f"{scenario.name}: {found.describe()}")


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
        say(f"{row['name']:<14} {row['description']}{mark}", hang=15)
