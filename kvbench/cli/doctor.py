"""``kvbench doctor``: what makes this machine noisy, and what it can move."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvbench.cli.output import json_option, print_json, say, watch

if TYPE_CHECKING:
    from kvbench.records.machine import MachineProfile

_MARKS = {"fine": "  ", "note": "- ", "warning": "! "}


@click.command("doctor")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Measure link, waits and a model's compute instead; kvbench predict --machine reads it.",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="[default: cpu]")
@click.option("--model", metavar="REF", help="Whose compute.  [default: smollm2]")
@click.option("--kv-type", type=click.Choice(["f16", "q8_0", "q4_0"]), help="[default: f16]")
@json_option
def command(
    out: Path,
    profile: Path | None,
    device: str | None,
    model: str | None,
    kv_type: str | None,
    as_json: bool,
) -> None:
    """Say what makes this machine noisy.

    And what to do about it, with the measured size of each where it can be measured. Takes a few
    seconds. With --profile: measure for under two minutes what `kvbench predict` needs.
    """
    chosen = {"device": device, "model": model, "kv_type": kv_type}
    given = {name: value for name, value in chosen.items() if value is not None}
    if profile is not None:
        _profile(profile, given, as_json)
        return
    if given:
        option = min(given).replace("_", "-")
        raise click.UsageError(f"--{option} goes with --profile")
    from kvbench.environment.doctor import examine

    findings = examine(out)
    if as_json:
        print_json(findings)
        return
    for finding in findings:
        measured = f": {finding.measured}" if finding.measured else ""
        say(f"{_MARKS[finding.severity]}{finding.what}{measured}", hang=4)
        if finding.advice:
            say(f"    {finding.advice}", hang=4)
    warnings = sum(1 for finding in findings if finding.severity == "warning")
    click.echo(f"{warnings} warnings" if warnings else "nothing stands in the way of a measurement")


def _profile(path: Path, given: dict[str, str], as_json: bool) -> None:
    from kvbench.cli.pull_progress import shown_pulls
    from runner.machine_profile import measure_to, wanted

    with shown_pulls():
        found = measure_to(path, wanted(given), watch)
    if as_json:
        print_json(found)
        return
    for line in _lines(found):
        say(line, hang=4)
    say(f"wrote {path}; kvbench predict --machine {path} reads it", hang=4)


def _lines(p: MachineProfile) -> list[str]:
    lines = [f"{p.device_name} ({p.device}), measured in {p.seconds:.0f} s"]
    lines.append(f"{'copies of':>12}{'to the device':>18}{'from it':>18}")
    for to, back in zip(p.link, p.store, strict=True):
        speeds = "".join(f"{c.bytes / c.seconds / 1e9:>13.2f} GB/s" for c in (to, back))
        lines.append(f"{to.bytes >> 10:>8} KiB{speeds}")
    latency = f"{p.link_latency_s * 1e6:.2f} us" if p.link_latency_s else "too small to tell"
    lines.append(
        f"latency of a copy {latency}, a wait {p.wait_s * 1e6:.2f} us,"
        f" issuing a call {p.issue_s * 1e6:.2f} us"
    )
    lines.append(f"{p.model}, {p.layers} layers, KV {p.kv_type}:")
    lines += [
        f"{c.rows:>9,} rows: {c.token_s * 1e3:.2f} ms a token, {c.layer_s * 1e3:.3f} ms a layer"
        for c in p.compute
    ]
    lines.append(f"{'head':>9} and sampling: {p.outside_s * 1e3:.2f} ms")
    return lines
