"""``kvbench load``: put load on a running server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvbench.cli.output import json_option, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbench.engines.load import LoadSpec, LoadSummary

ENDPOINTS = ("llama", "completions", "chat")


@click.command("load")
@click.argument("url")
@click.option("--endpoint", type=click.Choice(ENDPOINTS), default="completions", show_default=True)
@click.option("--rate", type=float, multiple=True, help="Open loop: requests a second; repeatable.")
@click.option("--concurrency", type=int, multiple=True, help="Closed loop: clients; repeatable.")
@click.option("--requests", type=int, default=100, show_default=True, help="For each point.")
@click.option("--generate", type=int, default=128, show_default=True, help="Tokens a request.")
@click.option("--prompt-tokens", type=int, default=256, show_default=True)
@click.option("--kind", default="prose", show_default=True, help="Text of the prompts.")
@click.option("--tokenizer", default="smollm2", show_default=True, help="Measures prompts.")
@click.option("--model", default="", help="The server's name for its model.")
@click.option("--slo", "slo_text", default="", metavar="ttft=MS,itl=MS", help="For the goodput.")
@click.option("--timeout", type=float, default=120.0, show_default=True, help="Of a request, in s.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--api-key-env", metavar="NAME", help="Variable that holds the server's key.")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="File that holds it.")
@json_option
def command(
    url: str,
    endpoint: str,
    rate: tuple[float, ...],
    concurrency: tuple[int, ...],
    requests: int,
    generate: int,
    prompt_tokens: int,
    kind: str,
    tokenizer: str,
    model: str,
    slo_text: str,
    timeout: float,
    seed: int,
    api_key_env: str | None,
    api_key_file: Path | None,
    as_json: bool,
) -> int:
    """Put load on a running server: latencies, goodput, errors.

    Every point of the sweep gets its own line: --rate and --concurrency may be given many times.
    Exit code 6 if any request failed.
    """
    import os

    import msgspec

    from kvbench.engines.load import Slo
    from kvbench.engines.load.sweep import sweep
    from kvbench.engines.urls import api_headers
    from kvbench.report.load import load_lines

    points = [{"rate": r} for r in rate] + [{"concurrency": c} for c in concurrency]
    if not points:
        raise click.UsageError("give --rate or --concurrency at least once")
    common = {"requests": requests, "generate": generate, "timeout_s": timeout, "seed": seed}
    specs = [_spec({**common, **point}, Slo.parse(slo_text)) for point in points]
    keys = {"api_key_env": api_key_env, "api_key_file": str(api_key_file) if api_key_file else None}
    headers = api_headers(keys, os.environ)
    make = _prompts(kind, prompt_tokens, tokenizer, seed)
    found: list[LoadSummary] = []
    for summary in sweep(url, endpoint, specs, make, model=model, headers=headers):
        found.append(summary)
        if not as_json:
            for line in load_lines(summary):
                click.echo(line)
    if as_json:
        print_json([msgspec.to_builtins(summary) for summary in found])
    return 6 if any(summary.errors for summary in found) else 0


def _spec(raw: dict[str, object], slo: object) -> LoadSpec:
    import msgspec

    from kvbench.engines.load import LoadSpec
    from kvbench.errors import UsageError

    try:
        return msgspec.convert({**raw, "slo": msgspec.to_builtins(slo)}, LoadSpec)
    except msgspec.ValidationError as error:
        raise UsageError(f"load: {error}") from None


def _prompts(kind: str, length: int, tokenizer: str, seed: int) -> Callable[[int], str]:
    from kvbench.decoder.model import open_model
    from kvbench.errors import UsageError
    from kvbench.workloads import prompt_text

    measure = open_model(tokenizer).tokenizer
    if measure is None:
        raise UsageError(f"tokenizer {tokenizer}: this model has none")
    return lambda index: prompt_text(kind, length, tokenizer=measure, seed=seed, index=index)
