"""What a gate found: checks, each with an outcome, and the first difference where there is one."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Outcome = Literal["passed", "mismatch", "ungateable", "failed", "not checked"]
"""``ungateable``: an arm does not repeat its own output. ``failed``: it gave none."""

Conclusion = Literal["", "same", "near-tie", "different", "corrupted", "irreproducible"]
"""In plain words, for a check that compared outputs; a near-tie is a mismatch all the same."""

_SEVERITY: tuple[Outcome, ...] = ("passed", "not checked", "failed", "ungateable", "mismatch")
_EXIT_CODES: dict[Outcome, int] = {
    "passed": 0,
    "not checked": 4,
    "mismatch": 4,
    "ungateable": 4,
    "failed": 6,
}


class Side(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One arm's choice at the first differing position."""

    token: int | None = None
    """None where the sequence had ended already."""
    text: str = ""
    margin: float | None = None
    """Best minus second-best logit (or log probability); None where it is not available."""


class Divergence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where two outputs first differ."""

    kind: str
    """``tokens``, ``logits``, ``text``, ``bytes``, ``count``, ``stop`` or a hash's name."""
    sequence: int | None = None
    position: int | None = None
    """Of the generated token, from 0; of the character, for text without tokens."""
    baseline: Side | None = None
    arm: Side | None = None
    detail: str = ""


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One statement that must hold: usually one task of one arm against the baseline."""

    name: str
    outcome: Outcome
    message: str
    """One line: what was compared, or what is wrong."""
    arm: str = ""
    task: str = ""
    conclusion: Conclusion = ""
    divergence: Divergence | None = None
    repeats: bool | None = None
    """Whether repeating the arm repeated its differing output; None: not tried."""
    forced: str = ""
    """What the teacher-forced comparison at every position showed, if it was made."""
    seconds: float = 0.0
    details: dict[str, Any] = {}


class GateReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything a gate checked. ``kvbench gate`` prints it, JUnit and the journal store it."""

    gate: str
    checks: tuple[Check, ...]
    baseline: str = ""
    versions: dict[str, str] = {}
    """Version receipt by arm."""
    notes: tuple[str, ...] = ()
    """What a reader must know: skipped parts, missing capabilities, a declared tolerance."""
    seconds: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of any check; a gate without checks checked nothing."""
        found = [check.outcome for check in self.checks]
        return max(found, key=_SEVERITY.index, default="not checked")

    @property
    def exit_code(self) -> int:
        """0 only if every check passed; 4 for a mismatch or what cannot be gated; 6 for a crash."""
        return _EXIT_CODES[self.outcome]

    @property
    def message(self) -> str:
        """One line for a table: the first check of the worst outcome, and how many there were."""
        worst = [check for check in self.checks if check.outcome == self.outcome]
        if self.outcome == "passed":
            return f"{len(self.checks)} checks passed"
        if not worst:
            return "nothing was checked"
        more = f" (and {len(worst) - 1} more)" if len(worst) > 1 else ""
        return f"{worst[0].name}: {worst[0].message}{more}"


def merge(gate: str, reports: list[GateReport]) -> GateReport:
    """Several reports as one, checks in order."""
    versions: dict[str, str] = {}
    for report in reports:
        versions |= report.versions
    return GateReport(
        gate=gate,
        checks=tuple(check for report in reports for check in report.checks),
        baseline=reports[0].baseline if reports else "",
        versions=versions,
        notes=tuple(dict.fromkeys(note for report in reports for note in report.notes)),
        seconds=sum(report.seconds for report in reports),
    )


def worst_exit_code(reports: list[GateReport]) -> int:
    """The exit code of several gates together; 4 where there is none."""
    outcomes = [report.outcome for report in reports]
    return _EXIT_CODES[max(outcomes, key=_SEVERITY.index, default="not checked")]
