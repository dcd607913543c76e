"""One arm's runs in one cell, summed up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

from kvbench.records import ArmSummary, Result, RunLine
from kvbench.spec import ArmSpec


def summarise_arm(
    spec: ArmSpec,
    runs: Sequence[RunLine],
    full: Callable[[RunLine], Result | None],
    environment: Callable[[str], dict[str, Any]],
) -> ArmSummary:
    """``runs``: the arm's counted runs in run order; ``full`` gives a run's whole result,
    ``environment`` the fingerprint with a hash."""
    own = [run for run in runs if run.arm == spec.name]
    good = [(run, result) for run in own if (result := full(run)) is not None]
    results = [result for _, result in good]
    logs = [math.log(r.tokens / r.decode_s) for r in results]
    speed = _geometric(logs)
    tokens = {result.tokens for result in results}
    return ArmSummary(
        name=spec.name,
        engine=spec.engine,
        settings=dict(spec.settings),
        runs=len(own),
        failures=len(own) - len(good),
        tok_s=speed,
        tok_s_passes=(_pass_speed(good, 0), _pass_speed(good, 1)),
        tokens=tokens.pop() if len(tokens) == 1 else None,
        ms_per_token=None if speed is None else 1e3 / speed,
        spread=_deviation(logs),
        hashes=_digests(results),
        bytes=dict(results[0].bytes) if results else {},
        waits=_waits(results),
        counters=_merge((r.counters for r in results), median),
        memory={k: int(v) for k, v in _merge((r.memory for r in results), max).items()},
        metrics=_merge((r.metrics for r in results), median),
        plan=dict(results[-1].telemetry) if results else {},
        telemetry=_means([run.telemetry for run in own]),
        receipt=environment(own[0].environment).get("arm", {}) if own else {},
    )


def _geometric(logs: Sequence[float]) -> float | None:
    # fsum: the same bits under every version of Python.
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def _pass_speed(good: Iterable[tuple[RunLine, Result]], which: int) -> float | None:
    return _geometric([math.log(r.tokens / r.decode_s) for run, r in good if run.pass_ == which])


def _deviation(logs: Sequence[float]) -> float | None:
    if len(logs) < 2:
        return None
    mean = math.fsum(logs) / len(logs)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / (len(logs) - 1))


def _digests(results: Iterable[Result]) -> dict[str, tuple[str, ...]]:
    seen: dict[str, dict[str, None]] = {}
    for result in results:
        for kind, digest in result.hashes.items():
            seen.setdefault(kind, {})[digest] = None
    return {kind: tuple(digests) for kind, digests in seen.items()}


def _waits(results: Sequence[Result]) -> dict[str, tuple[int, int, int]]:
    sites = {site for result in results for site in result.waits}
    found = {}
    for site in sorted(sites):
        rows = [result.waits.get(site, (0, 0, 0)) for result in results]
        made, elided, redundant = (int(median(column)) for column in zip(*rows, strict=True))
        found[site] = (made, elided, redundant)
    return found


def _means(dicts: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean of each name over the runs that have it."""
    columns = {
        name: [each[name] for each in dicts if name in each] for name in sorted(set().union(*dicts))
    }
    return {name: math.fsum(values) / len(values) for name, values in columns.items()}


def _merge(dicts: Iterable[Any], reduce: Callable[[list[float]], float]) -> dict[str, float]:
    columns: dict[str, list[float]] = {}
    for each in dicts:
        for name, value in each.items():
            columns.setdefault(name, []).append(float(value))
    return {name: reduce(values) for name, values in sorted(columns.items())}
