"""Where things run: the executor's interface, and the local one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from runner.block import BlockJob, Emit, run_block

T = TypeVar("T")


class Executor(Protocol):
    """Runs blocks and hands back their lines as they come."""

    def run(
        self, jobs: Iterable[BlockJob], emit: Emit, doing: Callable[[str], None]
    ) -> list[tuple[BlockJob, str]]:
        """Run every job; returns those that did not finish, each with the reason (a lost worker).

        ``emit`` is called in the calling thread, once per finished run.
        """

    def call(self, cell: str, function: Callable[..., T], *arguments: Any) -> T:
        """Call ``function`` where the cell's blocks run: for its rehearsal and its gate."""


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

    def call(self, cell: str, function: Callable[..., T], *arguments: Any) -> T:
        """See ``Executor``."""
        return function(*arguments)
