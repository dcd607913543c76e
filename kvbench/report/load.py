"""A load summary for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvbench.engines.load.summary import LoadSummary, Quantile
from kvbench.report.words import visible


def load_lines(summary: LoadSummary) -> Iterator[str]:
    """Plain text, a few lines for each point."""
    failed = summary.requests - summary.completed
    yield (
        f"{summary.name}: {summary.completed} of {summary.requests} requests, "
        f"{summary.request_s:.1f}/s, {summary.token_s:.0f} tok/s in {summary.wall_s:.1f} s"
    )
    for label, quantiles in (
        ("TTFT", summary.ttft_ms),
        ("ITL", summary.itl_ms),
        ("E2E", summary.e2e_ms),
    ):
        if quantiles:
            yield f"    {label:<5} {_row(quantiles)} ms"
    if summary.goodput_s is not None:
        yield f"    goodput {summary.goodput_s:.1f}/s with {summary.slo}"
    if failed:
        kinds = ", ".join(f"{count} {visible(kind)}" for kind, count in summary.errors.items())
        yield f"    FAILED {failed}: {kinds}; first: {visible(summary.first_error)}"
    if summary.cached_tokens:
        yield f"    {summary.cached_tokens} prompt tokens came from a cache"
    yield (
        f"    load generator: {summary.own_share:.0%} of one core, "
        f"at most {summary.late_ms:.1f} ms behind its schedule"
    )


def _row(quantiles: Sequence[Quantile]) -> str:
    return "  ".join(f"p{q.q * 100:g} {q.value:.1f}{_interval(q)}" for q in quantiles)


def _interval(quantile: Quantile) -> str:
    if quantile.low is None or quantile.high is None:
        return ""
    return f" [{quantile.low:.1f}, {quantile.high:.1f}]"
