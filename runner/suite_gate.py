"""``kvbench gate SUITE``: every cell's arms against its baseline, without any timing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gates.exact import CellOptions, gate_cell
from gates.registry import GateOptions
from kvbench.engines.arm import REFERENCE, Arm
from kvbench.engines.supervisor import Timeouts
from kvbench.errors import SettingError, UsageError
from kvbench.records.gate import GateReport
from kvbench.spec import CONVERSATIONS, Cell, Link, LinkSpec, Suite
from runner.tasks import arms_of, task_of

GATE_ONLY = ("inject", "settings", "seed", "timeout_s")
"""Options that a suite's gate has no use for."""

_NEXT_CHANGE = re.compile(r":(?=\w+=)")


@dataclass(frozen=True, slots=True)
class KnownBad:
    """The negative control: an arm of the suite, or one with a setting changed."""

    arm: str
    changes: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> KnownBad:
        """``ARM`` or ``ARM:KEY=VALUE[:KEY=VALUE]`` with values in JSON, or as plain text.

        A value may hold colons (a URL does): only one before ``KEY=`` starts another change.
        """
        arm, *given = text.split(":", maxsplit=1)
        found: dict[str, Any] = {}
        for change in _NEXT_CHANGE.split(given[0]) if given else ():
            key, equals, value = change.partition("=")
            if not key or not equals:
                raise SettingError("must-fail", text, "ARM or ARM:KEY=VALUE", "option")
            try:
                found[key] = msgspec.json.decode(value.encode())
            except msgspec.DecodeError:
                found[key] = value
        return cls(arm, found)

    def among(self, arms: dict[str, Arm], baseline: str) -> Arm:
        """The arm to start. Raises SettingError where it is none or would be the baseline."""
        if self.arm not in arms:
            raise SettingError("must-fail", self.arm, f"one of {', '.join(arms)}", "option")
        if self.arm == baseline and not self.changes:
            raise SettingError("must-fail", self.arm, "not the baseline itself", "option")
        arm = arms[self.arm]
        settings = {**arm.settings, **self.changes}
        return msgspec.structs.replace(arm, name=f"{arm.name}-known-bad", settings=settings)


def cells_under(options: GateOptions, cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """The cells on the model that ``options`` name.

    Raises UsageError for options that only a named gate knows: ignored, a planted fault would
    leave a suite's gate passing.
    """
    usual = GateOptions()
    given = [name for name in GATE_ONLY if getattr(options, name) != getattr(usual, name)]
    if given:
        raise UsageError(
            f"{', '.join(given)}: only for a named gate; a suite states its own settings and "
            "time limits, and takes --must-fail"
        )
    if not options.model:
        return cells
    return tuple(dataclasses.replace(cell, model=options.model) for cell in cells)


def gate_suite(
    suite: Suite,
    cells: tuple[Cell, ...],
    *,
    must_fail: KnownBad | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[GateReport]:
    """One report per cell. Failures of arms are in the reports.

    Raises UsageError for what cannot be asked for, and for ``gate = "none"``.
    """
    if suite.gate == "none":
        raise UsageError(f'suite {suite.name}: gate = "none": there is nothing to check')
    return [_gate(suite, cell, must_fail, progress) for cell in cells]


def _gate(
    suite: Suite, cell: Cell, must_fail: KnownBad | None, progress: Callable[[str], None]
) -> GateReport:
    arms = arms_of(cell, _stated(cell.link))
    bad = must_fail.among(arms, suite.baseline) if must_fail else None
    others = [
        arm
        for name, arm in arms.items()
        if name != suite.baseline
        and (must_fail is None or must_fail.changes or name != must_fail.arm)
    ]
    foreign = any(arm.engine != REFERENCE for arm in arms.values())
    run_s = suite.timeouts.run_s
    return gate_cell(
        arms[suite.baseline],
        others,
        [task_of(cell)],
        CellOptions(
            gate=f"{suite.name}/{cell.name}",
            timeouts=Timeouts(hello=run_s, prepare=run_s, run=run_s),
            budget_s=suite.timeouts.gate_s,
            bytes_may_differ=suite.bytes_may_differ,
            control_every_arm=foreign,
            serial=cell.workload.sequences > 1 and cell.workload.kind != CONVERSATIONS,
            tolerance=suite.tolerance,
            must_fail=bad,
            progress=progress,
        ),
    )


def _stated(spec: LinkSpec | None) -> Link | None:
    """Outputs do not depend on the link; a bandwidth that is stated is still applied."""
    if spec is None or spec.gb_s is None:
        return None
    return Link(bytes_per_s=spec.gb_s * 1e9, source="stated")
