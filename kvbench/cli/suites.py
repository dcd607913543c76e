"""``kvbench suites``: what can be passed to ``kvbench ab``."""

from __future__ import annotations

from pathlib import Path

import click

from kvbench.cli.output import json_option, print_json


@click.command("suites")
@json_option
def command(as_json: bool) -> None:
    """List the bundled suites."""
    from kvbench.bundled import suites_dir

    suites = [
        {"name": path.stem, "path": str(path), "description": _description(path)}
        for path in sorted(suites_dir().glob("*.toml"))
    ]
    if as_json:
        print_json(suites)
        return
    for suite in suites:
        click.echo(f"{suite['name']:<20} {suite['description']}")


def _description(path: Path) -> str:
    import tomllib

    from kvbench.errors import UsageError

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as broken:
        raise UsageError(f"{path}: not a TOML file: {broken}") from None
    return str(document.get("description", ""))
