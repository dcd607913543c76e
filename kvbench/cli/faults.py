"""``kvbench faults``: what can be planted, and which gate notices it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvbench.cli.output import json_option, print_json, say

if TYPE_CHECKING:
    from kvbench.records.gate import Check

HEADER = """# Planted faults

Written by `kvbench faults --write docs/FAULTS.md`, which runs every fault in the scenario where it
shows and every scenario without one (`kvbench gate sensitivity`). *Threads*: the output hash under
real threads differs, in this one run: that is a matter of timing. *Orders*: seeds of the schedule
explorer, of 12, under which it differs. *Races*: the happens-before check of a run in issue order,
in which nothing can corrupt. *Delivery*: the copies of the op log against the windows they should
fill.

"""


@click.command("faults")
@click.option(
    "--write",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Run the matrix fault x gate and write it as Markdown.",
)
@json_option
def command(write: Path | None, as_json: bool) -> int:
    """List planted faults and the gates that notice them.

    ``kvbench gate --inject NAME`` plants one; each says what it breaks and what it resembles.
    """
    from kvbench.decoder.faults import FAULTS

    if write is not None:
        return _write(write)
    if as_json:
        print_json(
            [
                {
                    "name": f.name,
                    "kind": f.kind,
                    "breaks": f.breaks,
                    "scenario": f.scenario,
                    "hazards": list(f.hazards),
                    "resembles": f.resembles,
                }
                for f in FAULTS
            ]
        )
        return 0
    kind = ""
    for fault in FAULTS:
        if fault.kind != kind:
            kind = fault.kind
            click.echo(f"\n{kind}")
        say(f"  {fault.name:<25} {fault.breaks}", hang=28)
        hazards = f"{', '.join(fault.hazards)}; " if fault.hazards else ""
        say(f"  {'':<25} {hazards}like {fault.resembles}", hang=28)
    return 0


def _write(path: Path) -> int:
    from gates.registry import GateOptions
    from gates.transport import sensitivity
    from kvbench.decoder.faults import FAULTS

    report = sensitivity.run(GateOptions(progress=lambda note: click.echo(f"  {note}", err=True)))
    by_name = {check.name: check for check in report.checks}
    lines = [
        "| fault | kind | hazards | like | threads | orders | races | delivery |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{f.name}` | {f.kind} | {', '.join(f.hazards)} | {f.resembles} "
        f"| {_cells(by_name[f.name])} |"
        for f in FAULTS
    ]
    clean = [check for check in report.checks if check.name.startswith("clean: ")]
    quiet = sum(check.outcome == "passed" for check in clean)
    lines += ["", f"Without a fault: {quiet} of {len(clean)} scenarios run without an objection."]
    path.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    click.echo(f"{path}: {len(FAULTS)} faults; {report.message}")
    return report.exit_code


def _cells(check: Check) -> str:
    found = check.details
    marks = {name: "yes" if found.get(name) else "" for name in ("threads", "races", "delivery")}
    orders = f"{found.get('orders', 0)}/12"
    return f"{marks['threads']} | {orders} | {marks['races']} | {marks['delivery']}"
