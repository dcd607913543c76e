"""``kvbench predict``: what the virtual device says a pipeline would gain."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from kvbench.cli.output import json_option, print_json

if TYPE_CHECKING:
    from kvbench.transport.simulate import Shape
    from runner.predict import Forecast, Prediction


@click.command("predict")
@click.option("--run", metavar="RUN", help="Predict a stored experiment's arms and compare.")
@click.option("--published", is_flag=True, help="Predict the published figures and compare.")
@click.option("--model", metavar="REF", help="Whose attention layers and KV rows.")
@click.option(
    "--kv-type", type=click.Choice(["f16", "q8_0", "q4_0"]), default="f16", show_default=True
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
    model: str | None,
    kv_type: str,
    link_gb_s: float | None,
    compute_ms: float | None,
    outside_ms: float,
    issue_us: float,
    wait_us: float,
    contexts: tuple[int, ...],
    as_json: bool,
) -> None:
    """Predict gain, best depth and ring from a cost model.

    The transport's own code runs on a device that only keeps time. Give a machine and a model
    (--link-gb-s, --compute-ms, --model), a stored experiment (--run), or --published.
    """
    if run is not None or published:
        if (run is not None and published) or model is not None:
            raise click.UsageError("give one of --run, --published and --model")
        _compare(_against(run), as_json)
        return
    if model is None or link_gb_s is None or compute_ms is None:
        raise click.UsageError("needs --link-gb-s, --compute-ms and --model; or --run, --published")
    from kvbench.device.virtual import Costs
    from kvbench.transport.settings import TransportSettings
    from runner.predict import forecast, shape_of

    costs = Costs(link=link_gb_s * 1e9, issue=issue_us / 1e6, wait=wait_us / 1e6)
    shape = shape_of(model, kv_type, compute_ms / 1e3, outside_ms / 1e3)
    chosen = contexts or (1024, 4096, 16384, 65536)
    found = forecast(shape, costs, TransportSettings(), chosen)
    if as_json:
        print_json(
            [{**asdict(f), "best_depth": f.best_depth, "gain": f.gain_percent} for f in found]
        )
        return
    _print_forecast(shape, costs.link, found)


def _against(run: str | None) -> list[Prediction]:
    from runner import predict
    from runner.store import find_run, load_summary

    if run is None:
        return predict.origin_predictions(predict.calibrate())
    return predict.against_run(load_summary(find_run(run)))


def _compare(found: list[Prediction], as_json: bool) -> None:
    if as_json:
        print_json([{**asdict(p), "error": p.error} for p in found])
        return
    click.echo(f"{'':<40}{'predicted':>10}{'measured':>10}{'error':>19}")
    for p in found:
        error = f"{p.error:+.1f} {'points' if p.unit == '%' else '%'}"
        click.echo(f"{p.what:<40}{p.predicted:>10.2f}{p.measured:>10.2f} {p.unit:<7}{error:>12}")
    for note in dict.fromkeys(p.note for p in found if p.note):
        named = ", ".join(p.what for p in found if p.note == note)
        click.echo(f"{named}: {note}")


def _print_forecast(shape: Shape, link: float, found: list[Forecast]) -> None:
    from kvbench.analysis.pipeline_model import crossing_rows, optimum_ring_bytes
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
    rows = crossing_rows(shape.splits, shape.row_bytes, link, shape.compute_s)
    best = optimum_ring_bytes(3, shape.splits, link, shape.compute_s)
    click.echo(f"copies take as long as the compute at {rows:,.0f} tokens of context")
    click.echo(f"ring worth having, 3 slots: {size(best)}")
