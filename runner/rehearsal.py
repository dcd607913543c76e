"""Before the first block: one run of the baseline per cell that needs its link calibrated.

It also says what the experiment will cost, from what one run really took.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from gates.exact.compare import DELIVERED
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task
from kvbench.errors import ArmFailure, SettingError, UsageError
from kvbench.records import Failure, Result
from kvbench.spec import Link, LinkSpec
from runner.block import run_arm

COMPUTE_METRIC = "compute_s"
"""Seconds of the decode loop that are not spent in copies, where an arm reports them."""


_REFUSED = (UsageError.__name__, SettingError.__name__)
"""Kinds of failure by which an arm says that it was asked for what cannot be."""


class Rehearsed(NamedTuple):
    """What one run of the baseline took."""

    wall_s: float
    decode_s: float
    rss_mib: float
    result: Result


def rehearse(arm: Arm, task: Task, run_s: float, cpus: tuple[int, ...] | None) -> Rehearsed:
    """Run the arm once. Raises ``ArmFailure`` with its own words if it fails.

    What the arm itself calls a wrong setting or task is one: ``UsageError``.
    """
    run = run_arm(arm, task, run_s, cpus)
    outcome = run.result
    if isinstance(outcome, Failure) and outcome.kind in _REFUSED:
        raise UsageError(f"arm {arm.name!r}: {outcome.message}")
    if isinstance(outcome, Failure):
        raise ArmFailure(f"arm {arm.name!r} failed its rehearsal: {outcome.message}")
    return Rehearsed(
        wall_s=sum(run.phases.values()),
        decode_s=outcome.decode_s,
        rss_mib=run.exit.max_rss_kib / 1024 if run.exit else 0.0,
        result=outcome,
    )


def resolve_link(spec: LinkSpec | None, rehearsed: Rehearsed | None, cell: str) -> Link | None:
    """The cell's link: stated as it is, or so that copy : compute has the ratio asked for.

    ``rehearsed`` is a run over the link at full speed. bandwidth = bytes / (ratio x compute time),
    where compute time is what the arm reports, or else all of its decode time.
    """
    if spec is None:
        return None
    if spec.gb_s is not None:
        return Link(bytes_per_s=spec.gb_s * 1e9, source="stated")
    assert spec.ratio is not None and rehearsed is not None
    delivered = _delivered(rehearsed.result.bytes)
    if delivered == 0:
        raise UsageError(
            f"cell {cell}: link.ratio: the baseline delivers no bytes over the link "
            f"(it reports {sorted(rehearsed.result.bytes) or 'none'}); state link.gb_s instead"
        )
    compute_s = rehearsed.result.metrics.get(COMPUTE_METRIC, rehearsed.decode_s)
    bandwidth = float(f"{delivered / (spec.ratio * compute_s):.4g}")
    return Link(bytes_per_s=bandwidth, source="calibrated", ratio=spec.ratio)


def _delivered(by_kind: Mapping[str, int]) -> int:
    return sum(by_kind.get(kind, 0) for kind in DELIVERED)


def unthrottled(arm: Arm, setting: str) -> Arm:
    """The same arm without the setting that slows its link."""
    settings = {key: value for key, value in arm.settings.items() if key != setting}
    return msgspec.structs.replace(arm, settings=settings)
