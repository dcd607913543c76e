"""The local executor: blocks one after another on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from runner.block import BlockJob, Emit, run_block


class Executor(Protocol):
    """Runs blocks and hands back their lines as they come."""

    def run(
        self, jobs: Iterable[BlockJob], emit: Emit, doing: Callable[[str], None]
    ) -> list[tuple[BlockJob, str]]:
        """Run every job; returns those that did not finish, each with the reason (a lost worker).

        ``emit`` is called in the calling thread, once per finished run.
        """


class LocalExecutor:
    """In this process; a job is finished, failed or interrupted, never lost."""

    def __init__(self, machine: dict[str, Any]) -> None:
        self.machine = machine

    def run(
        self, jobs: Iterable[BlockJob], emit: Emit, doing: Callable[[str], None]
    ) -> list[tuple[BlockJob, str]]:
        """See ``Executor``."""
        for job in jobs:
            run_block(job, self.machine, emit, doing)
        return []
