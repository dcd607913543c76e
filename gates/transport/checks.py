"""What the transport's gates share: which scenarios to run, planted faults, and wording."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from gates.registry import GateOptions
from gates.transport.scenarios import BY_NAME, SCENARIOS, Scenario
from kvbench.decoder.faults import DelayHooks, find
from kvbench.errors import SettingError
from kvbench.records.gate import Check, GateReport, Outcome

QUICK = ("decode", "wait", "host_carry", "few", "graphs", "shift", "resize", "padded", "split")
"""Scenarios of a quick run: one of each kind of shape."""

SETTINGS = ("scenario", "base", "record")
"""What ``--set`` may name for a gate that goes over scenarios; the last two are ``gate base``'s."""


def chosen(options: GateOptions) -> list[Scenario]:
    """The scenarios to run: all, the quick ones, or the one in which a planted fault shows."""
    for name, value in options.settings.items():
        if name not in SETTINGS:
            allowed = "settings of this gate are " + ", ".join(SETTINGS)
            raise SettingError(name, value, allowed, "--set")
    named = options.settings.get("scenario")
    if named is not None:
        if named not in BY_NAME:
            raise SettingError("scenario", named, "one of " + ", ".join(BY_NAME), "--set")
        return [BY_NAME[named]]
    if options.inject:
        return [BY_NAME[find(options.inject[0]).scenario]]
    return [s for s in SCENARIOS if not options.quick or s.name in QUICK]


def planted(options: GateOptions) -> DelayHooks:
    """Fresh hooks: the planted fault's, or neutral ones."""
    return find(options.inject[0]).hooks() if options.inject else DelayHooks()


def each(
    gate: str,
    options: GateOptions,
    scenarios: Iterable[Scenario],
    judge: Callable[[Scenario], tuple[Outcome, str]],
) -> GateReport:
    """One check per scenario."""
    started = time.monotonic()
    checks = []
    for scenario in scenarios:
        options.progress(f"{gate}: {scenario.name}")
        begin = time.monotonic()
        outcome, message = judge(scenario)
        checks.append(
            Check(
                name=scenario.name,
                outcome=outcome,
                message=message,
                seconds=time.monotonic() - begin,
            )
        )
    notes = ("quick: fewer scenarios",) if options.quick else ()
    return GateReport(
        gate=gate, checks=tuple(checks), notes=notes, seconds=time.monotonic() - started
    )
