"""``kvbench suites``: what can be passed to ``kvbench ab``."""

from __future__ import annotations

import click

from kvbench.cli.output import json_option, print_json, say


@click.command("suites")
@json_option
def command(as_json: bool) -> None:
    """List the bundled suites."""
    from kvbench.spec.load import find_suite, load_suite, suite_names

    rows = []
    for name in suite_names():
        suite, cells = load_suite(name)
        row = {
            "name": name,
            "arms": [arm.name for arm in suite.arms],
            "cells": len(cells),
            "blocks": suite.total_blocks,
            "description": suite.description,
            "path": str(find_suite(name)),
        }
        rows.append(row)
    if as_json:
        print_json(rows)
        return
    width = max(len(str(row["name"])) for row in rows)
    for row in rows:
        count = f"{row['cells']:>3} cell{' ' if row['cells'] == 1 else 's'}"
        say(f"{row['name']:<{width}} {count}  {row['description']}", hang=width + 12)
