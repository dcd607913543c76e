"""A pull on stderr: what is downloaded, and its progress once that takes over two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

QUIET_S = 2.0
LINE_EVERY_S = 10.0


@contextmanager
def shown_pulls() -> Iterator[None]:
    """Show the progress of every pull that the body turns out to need."""
    from kvbench.assets.store import PROGRESS

    with PullProgress() as progress:
        token = PROGRESS.set(progress.update)
        try:
            yield
        finally:
            PROGRESS.reset(token)


class PullProgress:
    """Context manager; ``assets.pull`` calls ``update``. A bar on a terminal, else lines."""

    def __init__(self) -> None:
        self._asset, self._started = "", 0.0
        self._last_line = 0.0
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> PullProgress:
        return self

    def update(self, name: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` bytes of ``name`` have arrived.

        Between the last byte and the next pull nothing is shown: other progress may begin.
        """
        now = time.monotonic()
        if name != self._asset:
            self._stop_bar()
            self._asset, self._started = name, now
            _say(f"{name}: downloading {total / 1e6:.1f} MB into the user's cache")
        if done >= total:
            self._stop_bar()
            return
        if now - self._started < QUIET_S:
            return
        if sys.stderr.isatty():
            self._draw(name, done, total)
        elif now - self._last_line >= LINE_EVERY_S:
            self._last_line = now
            _say(f"{name}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")

    def _draw(self, name: str, done: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
            console = Console(stderr=True)
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
            self._task = self._bar.add_task(name, total=total)
            self._bar.start()
        assert self._task is not None
        self._bar.update(self._task, completed=done)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_bar()

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
