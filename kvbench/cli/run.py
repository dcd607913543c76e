"""``kvbench run``: decode once; text, speed and hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kvbench.cli.output import json_option, print_json

if TYPE_CHECKING:
    from runner.once import Once


@click.command("run")
@click.option("--model", default="smollm2", show_default=True, help="Asset, .gguf or synthetic:…")
@click.option("--prompt", help="Text to continue, instead of a workload.")
@click.option(
    "--kind", default="prose", show_default=True, help="prose, code, json, dialogue or a file."
)
@click.option("--prompt-tokens", type=int, default=1024, show_default=True)
@click.option(
    "--history",
    type=click.Choice(["text", "seeded"]),
    default="text",
    show_default=True,
    help="seeded: start from drawn KV rows (any length at once), not from a prompt's prefill.",
)
@click.option("--generate", type=int, default=48, show_default=True, help="Tokens a sequence.")
@click.option("--sequences", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A decoder setting: depth=1 …"
)
@json_option
def command(
    model: str,
    prompt: str | None,
    kind: str,
    prompt_tokens: int,
    history: str,
    generate: int,
    sequences: int,
    seed: int,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Decode once: text, tokens/s, bandwidth, hashes."""
    from kvbench.cli.pull_progress import shown_pulls
    from runner.once import Request, decode_once

    request = Request(
        model=model,
        kind=kind,
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        generate=generate,
        sequences=sequences,
        seed=seed,
        seeded=history == "seeded",
        settings=settings,
    )
    with shown_pulls():
        once = decode_once(request)
    for device, said in _warnings(once):
        click.echo(f"warning: {device}: {said}", err=True)
    if as_json:
        print_json(once)
        return
    for line in _lines(once):
        click.echo(line)


def _warnings(once: Once) -> list[tuple[str, str]]:
    """What each device's transport has to tell: why graphs took the ordered path (T13)."""
    told = ((device, values) for device, values in once.result.telemetry.items())
    return [(d, w) for d, v in told if isinstance(v, dict) for w in v.get("warnings", ())]


def _lines(once: Once) -> list[str]:
    result, metrics = once.result, once.result.metrics
    lines = [*once.texts, "--"] if once.texts else []
    counts = sorted(set(once.prompt_tokens))
    start = f"{'/'.join(map(str, counts))} tokens of prompt"
    if once.history:
        start = f"a history not from a prompt ({once.history})"
    lines.append(
        f"{once.model} ({once.model_digest[:12]}): {result.sequences} x {start},"
        f" {result.tokens} decoded"
    )
    lines.append(
        f"{result.tokens / result.decode_s:.2f} tokens/s, {metrics['step_ms']:.2f} ms/step"
    )
    lines.append(
        f"read: weights {metrics['weight_gb_s']:.2f} GB/s, KV over the link"
        f" {metrics['window_gb_s']:.3f} GB/s ({metrics['window_mib_per_step']:.2f} MiB a step)"
    )
    if "link_limit_gb_s" in metrics:
        lines.append(
            f"measured alone: device memory {metrics['memory_limit_gb_s']:.2f} GB/s, link"
            f" {metrics['link_limit_gb_s']:.3f} GB/s"
        )
    lines += [f"{name}: {digest}" for name, digest in sorted(result.hashes.items())]
    return lines
