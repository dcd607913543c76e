"""Reading journals of older versions: one step per version, each from plain data to plain data.

A version is never changed after a release that wrote it. To add version N + 1: raise
``SCHEMA_VERSION`` in ``lines.py``, add the step from N here, and keep a journal of version N under
tests/records/journals/, which the tests read for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Step = Callable[[dict[str, Any]], dict[str, Any]]


class UnknownVersionError(ValueError):
    """A version from which no step leads to the current one."""


STEPS: Mapping[int, Step] = {}
"""Version -> step that makes a line of the next version of it."""


def migrate(
    line: dict[str, Any], current: int, steps: Mapping[int, Step] = STEPS
) -> dict[str, Any]:
    """A line as version ``current``. Raises ``UnknownVersionError``."""
    version = line.get("v")
    while version != current:
        if not isinstance(version, int) or version not in steps:
            raise UnknownVersionError(
                f"schema version {version!r}, this kvbench reads up to {current}"
            )
        line = {**steps[version](dict(line)), "v": version + 1}
        version += 1
    return line
