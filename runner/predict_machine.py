"""Predictions from a machine profile: for contexts, and for stored experiments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvbench.analysis.ceiling import STEP_MS
from kvbench.decoder.settings import DecoderSettings, parse
from kvbench.device.virtual import Costs
from kvbench.errors import UsageError
from kvbench.records import ArmSummary, CellSummary, Summary
from kvbench.records.machine import MachineProfile
from kvbench.transport.settings import TransportSettings
from kvbench.transport.simulate import Shape, simulate
from runner.predict import Forecast, Prediction, forecast, model_config, shape_of

CONTEXTS = (1024, 4096, 16_384, 65_536)
LAG = DecoderSettings().lag + 1
"""Tokens that are in flight before the host waits for one, as in the decoder."""


@dataclass(frozen=True)
class Machine:
    """A profile, and what replaces its measurements."""

    profile: MachineProfile
    link: float | None = None
    """Bytes a second, of a slowed link."""

    @property
    def costs(self) -> Costs:
        """What the virtual device charges."""
        profile = self.profile
        common = Costs(
            link=self.link or profile.link_bytes_per_s, issue=profile.issue_s, wait=profile.wait_s
        )
        if self.link is not None:
            return common
        return replace(
            common,
            link_sizes=tuple((c.bytes, c.seconds) for c in profile.link),
            store_sizes=tuple((c.bytes, c.seconds) for c in profile.store),
        )

    def shape(self, rows: int) -> Shape:
        """The profile's model behind ``rows``."""
        compute, outside = self.profile.compute_at(rows)
        return replace(self._shape(), compute_s=compute, outside_s=outside)

    def contexts(self) -> list[int]:
        """Worth a forecast: those of ``CONTEXTS`` that the model has room for."""
        room = model_config(self.profile.model).context
        return [rows for rows in CONTEXTS if rows <= room] or [room]

    def _shape(self) -> Shape:
        return shape_of(self.profile.model, self.profile.kv_type, 1.0, 0.0)


def forecasts(machine: Machine, contexts: Sequence[int]) -> list[Forecast]:
    """Ordered and pipelined speed of the profile's model at each context."""
    base = TransportSettings()
    return [
        found
        for rows in contexts
        for found in forecast(machine.shape(rows), machine.costs, base, [rows], lag=LAG)
    ]


def crossing(machine: Machine, most: int = 1 << 24) -> int | None:
    """Fewest rows at which the copies take as long as the compute; None up to ``most``."""
    costs, shape = machine.costs, machine.shape(1)

    def copies_are_longer(rows: int) -> bool:
        window = 2 * shape.row_bytes * rows
        copy = shape.splits * costs.copy(window, "host_to_device")
        return copy >= sum(machine.profile.compute_at(rows))

    if not copies_are_longer(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if copies_are_longer(middle) else (middle, high)
    return high


def against_run(machine: Machine, summary: Summary) -> list[Prediction]:
    """Every arm of a stored experiment, its baseline too, from the profile alone.

    Raises ``UsageError`` if no cell has the profile's device, model and KV type.
    """
    found = [p for cell in summary.cells for p in _cell(machine, cell)]
    if not found:
        profile = machine.profile
        raise UsageError(
            f"{summary.run}: no arm of the profile's device, model and KV type "
            f"({profile.device}, {profile.model}, {profile.kv_type}) with 1 sequence"
        )
    return found


def _cell(machine: Machine, cell: CellSummary) -> Iterator[Prediction]:
    rows = int(cell.workload.get("prompt_tokens", 0)) + int(cell.workload.get("generate", 0)) // 2
    one = cell.workload.get("sequences", 1) == 1
    if cell.workload.get("model") != machine.profile.model or not one:
        return
    link = cell.link.get("bytes_per_s")
    here = replace(machine, link=float(link)) if link else machine
    for arm in cell.arms:
        settings = _settings(here.profile, arm)
        step = arm.metrics.get(STEP_MS)
        if settings is None or step is None:
            continue
        made = simulate(here.shape(rows), here.costs, settings.transport(), rows, lag=LAG)
        yield Prediction(f"{cell.name}, {arm.name}", 1 / made.step_s, 1e3 / step, "steps/s")


def _settings(profile: MachineProfile, arm: ArmSummary) -> DecoderSettings | None:
    """An arm's settings, if it is one that the profile describes."""
    if arm.engine != "reference":
        return None
    settings = parse(dict(arm.settings))
    same = (settings.device, settings.kv_type) == (profile.device, profile.kv_type)
    plain = not (settings.resident or settings.direct or settings.speculates)
    return settings if same and plain and settings.devices == 1 else None
