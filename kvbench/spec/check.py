"""Rules of a suite that join several keys."""

from __future__ import annotations

import re

from kvbench.errors import UsageError
from kvbench.spec.suite import CONVERSATIONS, Suite

RUNNING_SERVER = "url"
"""The setting by which an engine is pointed at a server that someone else started."""

_SECRET = re.compile(
    r"(?i)(?:^|[-_.])(token|secret|password|passwd|api[-_]?key|authorization|credentials?)$"
)


def is_secret(name: str) -> bool:
    """Whether something of that name has a value that is nobody's business.

    ``API_KEY`` and ``hf_token`` are; ``tokens`` and ``prompt_tokens`` are not.
    """
    return bool(_SECRET.search(name))


def check_suite(suite: Suite, source: str) -> None:
    """Raise ``UsageError`` naming ``source``, key and reason if ``suite`` cannot be run."""

    def refuse(key: str, why: str) -> None:
        raise UsageError(f"{source}: {key}: {why}")

    names = [arm.name for arm in suite.arms]
    for number, name in enumerate(names):
        if name in names[:number]:
            refuse(f"arms[{number}].name", f"{name!r} appears twice")
    if suite.baseline not in names:
        refuse("baseline", f"{suite.baseline!r} is no arm; arms are {', '.join(names)}")
    _check_blocks(suite, source)
    if (suite.gate == "tolerance") != (suite.tolerance is not None):
        refuse("tolerance", 'goes with gate = "tolerance", and only with it')
    given = suite.tolerance
    if given is not None and (given.logits is None) == (given.kl is None):
        refuse("tolerance", "give exactly one of logits and kl")
    for key, cpus in [("affinity", suite.affinity)] + [
        (f"arms[{number}].affinity", arm.affinity) for number, arm in enumerate(suite.arms)
    ]:
        if cpus is not None and (not cpus or len(set(cpus)) != len(cpus) or min(cpus) < 0):
            refuse(key, f"{list(cpus)}; allowed is a list of different CPU numbers from 0")
    for number, arm in enumerate(suite.arms):
        for name, value in arm.env.items():
            if is_secret(name) and not value.startswith("$"):
                refuse(f"arms[{number}].env.{name}", f'looks like a secret; write "${name}"')
        if arm.settings.get(RUNNING_SERVER) and suite.process != "attached":
            refuse(
                f"arms[{number}].settings.{RUNNING_SERVER}",
                'a server that is already running needs process = "attached"',
            )
        if (arm.engine == "program") != bool(arm.command):
            refuse(f"arms[{number}].command", 'goes with engine = "program", and only with it')
    if suite.link is not None and (suite.link.gb_s is None) == (suite.link.ratio is None):
        on_axis = any(axis.startswith("link.") for axis in suite.grid)
        if not on_axis or suite.link.gb_s is not None:
            refuse("link", "give exactly one of gb_s and ratio")
    if "link.gb_s" in suite.grid and "link.ratio" in suite.grid:
        refuse("grid.link.ratio", "cannot be an axis beside link.gb_s")
    kind, has_path = suite.workload.kind, suite.workload.path is not None
    if (kind == "file" and not has_path) or (has_path and kind not in ("file", CONVERSATIONS)):
        refuse("workload.path", 'goes with workload.kind = "file" or "conversations"')


def _check_blocks(suite: Suite, source: str) -> None:
    """M3: n is fixed in advance and even, or looks are declared in advance."""
    if suite.looks and suite.blocks is not None:
        raise UsageError(f"{source}: looks: cannot be given beside blocks")
    if suite.blocks is not None and suite.blocks % 2:
        raise UsageError(
            f"{source}: blocks: {suite.blocks} is odd; an even number cancels quadratic drift too"
        )
    for number, look in enumerate(suite.looks):
        if look % 2:
            raise UsageError(f"{source}: looks[{number}]: {look} is odd; looks are even")
        if number and look <= suite.looks[number - 1]:
            raise UsageError(f"{source}: looks[{number}]: {look} does not increase")
    if len(suite.looks) == 1:
        raise UsageError(f"{source}: looks: one look is blocks = {suite.looks[0]}")
