"""Runs a scenario once and says what came out: the digest, the op log, what was left behind."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from gates.transport.program import Digest, execute
from gates.transport.scenarios import Scenario
from kvbench.decoder.engine import Engine
from kvbench.decoder.faults import DelayHooks
from kvbench.decoder.model import Model, open_model
from kvbench.decoder.settings import DecoderSettings, parse
from kvbench.device.cpu.explorer import Picker
from kvbench.device.oplog import OpLog
from kvbench.errors import DeviceError
from kvbench.transport.hooks import TransportHooks
from kvbench.transport.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a scenario. ``error``: it ended in a device error instead of an output."""

    digest: str
    tokens: list[list[int]]
    log: OpLog
    telemetry: list[Telemetry]
    error: str = ""
    steps: int = 0
    """Scheduling steps taken by the explorer."""
    leaked: str = ""
    """What was not given back at the end."""


@functools.cache
def model_of(ref: str) -> Model:
    """Models are opened once a process."""
    return open_model(ref)


def run(
    scenario: Scenario,
    *,
    hooks: TransportHooks | None = None,
    picker: Picker | None = None,
    seed: int = 0,
    **overrides: Any,
) -> Outcome:
    """Execute a scenario's program; ``overrides`` replace settings."""
    settings = parse({**scenario.settings, **overrides})
    hooks = hooks or TransportHooks()
    if isinstance(hooks, DelayHooks):
        hooks.configure(settings)
    log, digest = OpLog(), Digest()
    engine = Engine(
        model_of(scenario.model),
        settings,
        scenario.sequences,
        scenario.capacity,
        hooks=hooks,
        log=log,
        picker=picker,
    )
    error = ""
    telemetry = [s.pipeline.telemetry for s in engine.stages]
    devices = list(engine.devices)
    try:
        try:
            execute(engine, scenario.program, digest, seed=seed)
        finally:
            engine.close()
    except DeviceError as failure:
        error = str(failure)
    leaked = "" if error else _leaked(devices)
    return Outcome(
        digest.hexdigest(),
        digest.tokens,
        log,
        telemetry,
        error,
        len(picker.chosen) if picker is not None else 0,
        leaked,
    )


def reference(scenario: Scenario, *, seed: int = 0) -> Outcome:
    """What the scenario's output must be: the ordered path, eager, in issue order."""
    return _reference(scenario.name, scenario.model, seed)


@functools.cache
def _reference(name: str, model: str, seed: int) -> Outcome:
    from gates.transport.scenarios import BY_NAME

    return ordered(BY_NAME[name], seed=seed)


def ordered(scenario: Scenario, *, seed: int = 0) -> Outcome:
    """The scenario at depth 0, without captured graphs, on one device in issue order."""
    return run(scenario, seed=seed, picker=IssueOrder(0), depth=0, graphs=False, devices=1)


class IssueOrder(Picker):
    """Runs everything as soon as it is issued: the one order in which nothing can race."""

    def eager(self) -> bool:
        """Always."""
        return True


def settings_of(scenario: Scenario) -> DecoderSettings:
    """The scenario's settings, parsed."""
    return parse(dict(scenario.settings))


def _leaked(devices: list[Any]) -> str:
    parts = []
    for device in devices:
        for space, used in device.used_bytes.items():
            if used:
                parts.append(f"{device.name}: {used} bytes of {space} memory")
        if device.live_events:
            parts.append(f"{device.name}: {device.live_events} events")
        if device.queues:
            parts.append(f"{device.name}: queues {', '.join(device.queues)}")
    return "; ".join(parts)
