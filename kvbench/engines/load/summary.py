"""From outcomes to latencies with intervals, throughput, goodput, errors, and our own share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from kvbench.engines.load.drive import Driven, Outcome
from kvbench.engines.load.spec import LoadSpec, Slo

QUANTILES = (0.5, 0.9, 0.99)
Z95 = 1.959963984540054


class Quantile(msgspec.Struct, frozen=True):
    """A percentile in milliseconds with a 95% interval; None where n is too small for one."""

    q: float
    value: float
    low: float | None
    high: float | None


class LoadSummary(msgspec.Struct, frozen=True):
    """One point of a sweep."""

    name: str
    requests: int
    completed: int
    errors: dict[str, int]
    """By kind. Requests that failed are in no latency, and never in the goodput."""
    first_error: str
    wall_s: float
    request_s: float
    """Completed requests a second."""
    token_s: float
    goodput_s: float | None
    """Requests a second that met the SLO; None without one."""
    slo: str
    ttft_ms: tuple[Quantile, ...]
    """From when the request was due (open loop) or sent (closed) to its first token."""
    itl_ms: tuple[Quantile, ...]
    """Each request's mean time between tokens."""
    e2e_ms: tuple[Quantile, ...]
    late_ms: float
    """Largest delay of our own between a request's being due and being sent."""
    own_share: float
    """CPU time of the load generator over wall time: its share of one core."""
    cached_tokens: int
    """Prompt tokens that the server took from a cache."""


def summarise(spec: LoadSpec, driven: Driven) -> LoadSummary:
    """Everything a report shows about one point."""
    done = [outcome for outcome in driven.outcomes if outcome.answer is not None]
    failed = [outcome for outcome in driven.outcomes if outcome.answer is None]
    tokens = sum(outcome.answer.tokens for outcome in done if outcome.answer)
    limits = spec.slo.describe()
    good = sum(_meets(outcome, spec.slo) for outcome in done)
    return LoadSummary(
        name=spec.name,
        requests=len(driven.outcomes),
        completed=len(done),
        errors=dict(Counter(outcome.error for outcome in failed)),
        first_error=failed[0].message if failed else "",
        wall_s=driven.wall_s,
        request_s=len(done) / driven.wall_s,
        token_s=tokens / driven.wall_s,
        goodput_s=good / driven.wall_s if limits else None,
        slo=limits,
        ttft_ms=quantiles([_ttft(outcome) for outcome in done]),
        itl_ms=quantiles([_itl(outcome) for outcome in done]),
        e2e_ms=quantiles([_e2e(outcome) for outcome in done]),
        late_ms=max((o.sent - o.due for o in driven.outcomes), default=0.0) * 1e3,
        own_share=driven.cpu_s / driven.wall_s,
        cached_tokens=sum(outcome.answer.cached for outcome in done if outcome.answer),
    )


def quantiles(values: Sequence[float]) -> tuple[Quantile, ...]:
    """Percentiles with distribution-free intervals: order statistics by the binomial's normal
    approximation, None where the ranks would fall outside the sample."""
    ordered = sorted(values)
    n = len(ordered)
    found = []
    for q in QUANTILES if n else ():
        half = Z95 * math.sqrt(n * q * (1 - q))
        low, high = math.floor(n * q - half), math.ceil(n * q + half)
        inside = low >= 0 and high <= n - 1
        found.append(
            Quantile(
                q=q,
                value=ordered[min(n - 1, math.ceil(n * q) - 1)],
                low=ordered[low] if inside else None,
                high=ordered[high] if inside else None,
            )
        )
    return tuple(found)


def _ttft(outcome: Outcome) -> float:
    assert outcome.answer is not None
    return (outcome.answer.arrivals[0] - outcome.due) * 1e3


def _e2e(outcome: Outcome) -> float:
    assert outcome.answer is not None
    return (outcome.answer.arrivals[-1] - outcome.due) * 1e3


def _itl(outcome: Outcome) -> float:
    answer = outcome.answer
    assert answer is not None
    return (answer.arrivals[-1] - answer.arrivals[0]) / max(1, answer.tokens - 1) * 1e3


def _meets(outcome: Outcome, slo: Slo) -> bool:
    limits = ((slo.ttft_ms, _ttft), (slo.itl_ms, _itl), (slo.e2e_ms, _e2e))
    return all(limit is None or measure(outcome) <= limit for limit, measure in limits)
