"""``kvbench predict``: what the virtual device says a pipeline would gain."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvbench.cli.output import json_option, print_json, say

if TYPE_CHECKING:
    from runner.predict import Forecast, Prediction
    from runner.predict_machine import Machine


@click.command("predict")
@click.option("--run", metavar="RUN", help="Predict a stored experiment's arms and compare.")
@click.option("--published", is_flag=True, help="Predict the published figures and compare.")
@click.option("--measured", is_flag=True, help="Predict the GPU sweeps in results/ and compare.")
@click.option(
    "--machine",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="A profile by kvbench doctor --profile; alone or with --run.",
)
@click.option("--model", metavar="REF", help="Whose attention layers and KV rows.")
@click.option(
    "--kv-type", type=click.Choice(["f16", "q8_0", "q4_0"]), help="[default: f16, or the profile's]"
)
@click.option("--link-gb-s", type=click.FloatRange(min=0, min_open=True), help="Host to device.")
@click.option("--compute-ms", type=click.FloatRange(min=0, min_open=True), help="A step's compute.")
@click.option("--outside-ms", type=click.FloatRange(min=0), default=0.0, help="Head and sampling.")
@click.option("--issue-us", type=click.FloatRange(min=0), default=0.0, help="Host time a call.")
@click.option("--wait-us", type=click.FloatRange(min=0), default=0.0, help="Host time a wait.")
@click.option(
    "--context", "contexts", type=click.IntRange(min=1), multiple=True, help="May be repeated."
)
@json_option
def command(
    run: str | None,
    published: bool,
    measured: bool,
    machine: Path | None,
    model: str | None,
    kv_type: str | None,
    link_gb_s: float | None,
    compute_ms: float | None,
    outside_ms: float,
    issue_us: float,
    wait_us: float,
    contexts: tuple[int, ...],
    as_json: bool,
) -> None:
    """Predict gain, best depth and ring from a cost model.

    The transport's own code runs on a device that only keeps time. Give a machine's profile
    (--machine), a machine and a model (--link-gb-s, --compute-ms, --model), a stored experiment
    (--run), --measured or --published.
    """
    if sum((run is not None, published, measured, model is not None)) > 1:
        raise click.UsageError("give one of --run, --published, --measured and --model")
    if machine is not None:
        stated = (published, measured, model, kv_type, compute_ms, outside_ms, issue_us, wait_us)
        if any(stated):
            raise click.UsageError(
                "--machine goes with --run, --context and --link-gb-s; the rest is in the profile"
            )
        _by_machine(machine, run, link_gb_s, contexts, as_json)
        return
    if run is not None or published or measured:
        _compare(_against(run, published), as_json)
        if published and not as_json:
            _trends()
        return
    if model is None or link_gb_s is None or compute_ms is None:
        raise click.UsageError(
            "needs --machine; or --link-gb-s, --compute-ms and --model; or --run, --measured, "
            "--published"
        )
    from kvbench.analysis.pipeline_model import crossing_rows, optimum_ring_bytes
    from kvbench.device.virtual import Costs
    from kvbench.transport.settings import TransportSettings
    from runner.predict import forecast, shape_of

    costs = Costs(link=link_gb_s * 1e9, issue=issue_us / 1e6, wait=wait_us / 1e6)
    shape = shape_of(model, kv_type or "f16", compute_ms / 1e3, outside_ms / 1e3)
    chosen = contexts or (1024, 4096, 16384, 65536)
    found = forecast(shape, costs, TransportSettings(), chosen)
    if as_json:
        print_json(_plain(found))
        return
    _print_forecast(found)
    rows = crossing_rows(shape.splits, shape.row_bytes, costs.link, shape.compute_s)
    _print_crossing(rows, optimum_ring_bytes(3, shape.splits, costs.link, shape.compute_s))


def _by_machine(
    path: Path, run: str | None, link_gb_s: float | None, contexts: tuple[int, ...], as_json: bool
) -> None:
    from kvbench.records.machine import read_profile
    from runner import predict_machine
    from runner.store import find_run, load_summary

    link = None if link_gb_s is None else link_gb_s * 1e9
    machine = predict_machine.Machine(read_profile(path), link)
    if run is not None:
        if link is not None or contexts:
            raise click.UsageError("--run knows its own link and contexts")
        _compare(predict_machine.against_run(machine, load_summary(find_run(run))), as_json)
        return
    found = predict_machine.forecasts(machine, contexts or machine.contexts())
    errors = _measured()
    if as_json:
        print_json({"forecast": _plain(found), "errors_elsewhere": _errors(errors)})
        return
    profile = machine.profile
    click.echo(f"{profile.device_name} ({profile.device}), {profile.model}, KV {profile.kv_type}")
    _print_forecast(found)
    _print_machine_crossing(machine)
    click.echo()
    click.echo("how far such predictions were off where they were measured (results/):")
    _compare(errors, as_json=False)


def _measured() -> list[Prediction]:
    from runner.predict_measured import against_sweep, sweeps

    return [p for path in sweeps() for p in against_sweep(path)]


def _against(run: str | None, published: bool) -> list[Prediction]:
    from runner import predict, predict_origin
    from runner.store import find_run, load_summary

    if published:
        return predict_origin.origin_predictions(predict_origin.calibrate())
    return _measured() if run is None else predict.against_run(load_summary(find_run(run)))


def _trends() -> None:
    from runner import predict_origin

    for trend in predict_origin.trends(predict_origin.calibrate()):
        say(trend, hang=2)


def _errors(found: list[Prediction]) -> list[dict[str, Any]]:
    return [{**asdict(p), "error": p.error} for p in found]


def _plain(found: list[Forecast]) -> list[dict[str, Any]]:
    return [{**asdict(f), "best_depth": f.best_depth, "gain": f.gain_percent} for f in found]


def _compare(found: list[Prediction], as_json: bool) -> None:
    if as_json:
        print_json(_errors(found))
        return
    click.echo(f"{'':<40}{'predicted':>10}{'measured':>10}{'error':>19}")
    for p in found:
        error = f"{p.error:+.1f} {'points' if p.unit == '%' else '%'}"
        say(f"{p.what:<40}{p.predicted:>10.2f}{p.measured:>10.2f} {p.unit:<7}{error:>12}")
    for note in dict.fromkeys(p.note for p in found if p.note):
        named = ", ".join(p.what for p in found if p.note == note)
        say(f"{named}: {note}", hang=2)


def _print_forecast(found: list[Forecast]) -> None:
    from kvbench.report.words import size

    depths = list(found[0].pipelined)
    heads = "".join(f"{f'depth {depth}':>9}" for depth in depths)
    click.echo(f"{'context':>9}{'ordered':>9}{heads}{'best':>5}{'gain':>9}{'ring':>12}  tok/s")
    for f in found:
        speeds = "".join(f"{f.pipelined[depth]:>9.2f}" for depth in depths)
        ring = size(f.ring_mib * (1 << 20))
        click.echo(
            f"{f.rows:>9,}{f.ordered:>9.2f}{speeds}{f.best_depth:>5}{f.gain_percent:>+8.1f}%{ring:>12}"
        )


def _print_machine_crossing(machine: Machine) -> None:
    from kvbench.analysis.pipeline_model import optimum_ring_bytes
    from runner.predict_machine import crossing

    rows = crossing(machine)
    if rows is None:
        click.echo("the copies take less time than the compute at every context")
        return
    shape = machine.shape(rows)
    best = optimum_ring_bytes(3, shape.splits, machine.costs.link, shape.compute_s)
    _print_crossing(rows, best)


def _print_crossing(rows: float, ring_bytes: float) -> None:
    from kvbench.report.words import size

    click.echo(f"copies take as long as the compute at {rows:,.0f} tokens of context")
    click.echo(f"ring worth having, 3 slots: {size(ring_bytes)}")
