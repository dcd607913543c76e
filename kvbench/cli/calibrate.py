"""``kvbench calibrate``: the machine's A/A floor."""

from __future__ import annotations

from pathlib import Path

import click

from kvbench.cli.output import json_option, print_json, watch


@click.command("calibrate")
@click.argument("suite", default="main")
@click.option("--blocks", type=int, default=12, show_default=True, help="An even number.")
@click.option("--effect", "effects", type=float, multiple=True, help="E.g. 0.015; repeatable.")
@click.option("--model", help="Another model than the suite's.")
@click.option("--other-cores", type=float, help="Cores that other processes may use.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@json_option
def command(
    suite: str,
    blocks: int,
    effects: tuple[float, ...],
    model: str | None,
    other_cores: float | None,
    out: Path,
    as_json: bool,
) -> int:
    """Measure and store this machine's A/A floor.

    Runs the suite's baseline against itself and says which number of blocks finds which effect
    here. `kvbench ab` pools the stored variance while environment and cell are the same.
    """
    from runner import ab
    from runner.calibrate import calibrate

    found = calibrate(
        suite,
        watch,
        blocks=blocks,
        root=out,
        effects=effects,
        overrides=ab.Overrides(model=model, other_cores=other_cores),
    )
    if as_json:
        print_json([reach._asdict() for reach in found.reach])
        return 0
    for reach in found.reach:
        click.echo(
            f"{reach.cell}: d_k scatters by {reach.spread:.3%} between blocks, "
            f"at most {reach.spread_at_most:.3%} (95% confidence)"
        )
        floors = ", ".join(f"{floor:.2%} at n = {n}" for n, floor in reach.floors.items())
        click.echo(f"  A/A floor: {floors}")
        for effect, n in reach.needed.items():
            click.echo(f"  {_sentence(effect, n)}")
    click.echo(f"stored; the A/A experiment is {found.directory}")
    return 0


def _sentence(effect: float, n: int | None) -> str:
    if n is None:
        return f"{effect:+.1%} is not found: it lies within the margin or below the noise"
    return f"{effect:+.1%} is found in 90% of experiments with {n} blocks"
