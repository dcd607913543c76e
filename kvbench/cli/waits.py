"""``kvbench waits``: where the reference decoder waits, and what a wait must cost elsewhere."""

from __future__ import annotations

from typing import Any

import click

from kvbench.cli.output import json_option, print_json, say


@click.command("waits")
@click.option("--measure", is_flag=True, help="Decode with each arm and count what was made.")
@json_option
def command(as_json: bool, measure: bool) -> None:
    """List the decoder's wait sites; fit the cost of a wait."""
    from kvbench.decoder.waits import Work, real_waits

    if measure:
        _measure(as_json)
        return

    token = Work(graphs=1, read=1, tokens=1)
    totals = {mode: real_waits(mode, token) for mode in ("stock", "elided", "quiet")}
    model = _model(totals["stock"] - totals["elided"])
    if as_json:
        print_json({"sites": _sites(), "per_token": totals, "cost": model})
        return
    click.echo(f"{'site':<18} {'per':<6} {'stock':>5} {'elided':>6} {'quiet':>5}  why")
    for site in _sites():
        mark = " (redundant)" if site["redundant"] else ""
        say(
            f"{site['site']:<18} {site['per']:<6} {site['stock']:>5} {site['elided']:>6} "
            f"{site['quiet']:>5}  {site['why']}{mark}",
            hang=46,
        )
    say(
        f"{'one plain token':<18} {'':<6} {totals['stock']:>5} {totals['elided']:>6} "
        f"{totals['quiet']:>5}  quiet waits once more, for the event behind its results",
        hang=46,
    )
    _print_model(model)


def _sites() -> list[dict[str, Any]]:
    from kvbench.decoder.waits import SITES

    return [
        {
            "site": site.name,
            "per": site.per,
            "stock": 1,
            "elided": site.elided,
            "quiet": 0,
            "why": site.why,
            "redundant": bool(site.elided) and not site.for_result,
        }
        for site in SITES
    ]


def _model(spared: int) -> dict[str, Any]:
    from dataclasses import asdict

    from kvbench.analysis.waitcost import fit, predictions, read_published
    from kvbench.bundled import published_dir

    published = read_published(published_dir() / "sync_elision.csv")
    found = fit(published)
    plain = predictions(published, found, spared)
    return {
        **asdict(found),
        "cost_us": found.cost_us,
        "plain": {name: {**asdict(p), "share": p.share} for name, p in plain.items()},
    }


def _print_model(model: dict[str, Any]) -> None:
    click.echo()
    say(
        f"Cost of a wait, fitted to the published speculative row alone: {model['saved_ms']:.3f} "
        f"ms a token over {model['calls']:.2f} calls: {model['cost_us']:.1f} us each"
    )
    click.echo("Tested on the published plain row, by waits spared per token:")
    for name, p in model["plain"].items():
        say(
            f"  {name:<30} {p['spared']:5.1f} waits  {p['saved_ms']:.2f} ms  "
            f"+{p['gain'] * 100:.1f}% predicted, {p['published_ms']:.2f} ms  "
            f"+{p['published_gain'] * 100:.1f}% published: {p['share'] * 100:.0f}% of it",
            hang=33,
        )


def _measure(as_json: bool) -> None:
    from dataclasses import asdict

    from kvbench.decoder.measure_waits import MODEL, TOKENS
    from kvbench.decoder.measure_waits import measure as measured

    found = measured()
    if as_json:
        print_json([asdict(m) for m in found])
        return
    click.echo(f"{MODEL}, {TOKENS} tokens, one sequence; real waits")
    click.echo(
        f"{'draft':<9} {'arm':<7} {'per token':>9} {'fall':>6} {'target graph':>12} "
        f"{'draft step':>10} {'redundant':>9} {'accepted':>10}  outputs, other calls"
    )
    for m in found:
        stock = next(o for o in found if o.draft == m.draft and o.mode == "stock")
        step = "" if m.per_draft_step is None else f"{m.per_draft_step:.2f}"
        fall = "" if m is stock else f"{(m.per_token / stock.per_token - 1) * 100:.1f}%"
        same = ["equal" if m.hashes == stock.hashes else "DIFFER"]
        same.append("equal" if m.other_calls == stock.other_calls else "differ")
        say(
            f"{m.draft:<9} {m.mode:<7} {m.per_token:>9.2f} {fall:>6} {m.per_target_graph:>12.2f} "
            f"{step:>10} {m.redundant:>9.2f} {m.accepted:>10}  {', '.join(same)}",
            hang=70,
        )
