"""The one place that names what must match before two records are compared."""

from __future__ import annotations

from typing import Any

MUST_MATCH = (
    "machine.id",
    "machine.cpu",
    "machine.microcode",
    "machine.cpus",
    "machine.smt",
    "machine.memory_mib",
    "machine.governor",
    "machine.no_turbo",
    "machine.boost",
    "machine.huge_pages",
    "machine.kernel",
    "machine.virtual",
    "machine.gpus",
    "process.affinity",
    "process.cpu_quota",
    "process.memory_limit",
    "process.memory_nodes",
    "process.nice",
    "software.python",
    "software.libraries",
)
"""Between two experiments of one machine; a run that is resumed must also keep the rest."""

MUST_MATCH_WITHIN_A_CELL = tuple(name for name in MUST_MATCH if name != "machine.id")
"""Between the runs of one cell: a cluster may go on with it on another machine of the same kind."""

MUST_MATCH_ON_RESUME = (*MUST_MATCH, "software.kvbench", "software.revision")


def differences(
    before: dict[str, Any], after: dict[str, Any], fields: tuple[str, ...] = MUST_MATCH
) -> list[tuple[str, Any, Any]]:
    """(field, before, after) for each field that does not match, in the order of ``fields``."""
    found = []
    for name in fields:
        old, new = value_of(before, name), value_of(after, name)
        if old != new:
            found.append((name, old, new))
    return found


def value_of(content: Any, name: str) -> Any:
    """The value at a dotted name; None where it is not there."""
    for key in name.split("."):
        content = content.get(key) if isinstance(content, dict) else None
    return content
