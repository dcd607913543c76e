"""Live progress on stderr: a bar on a terminal, one line per finished step elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kvbench.report.words import duration, visible

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Progress:
    """Steps of known number, each of which may take a while; more may turn out to be needed.

    ``doing`` says what runs now, ``step`` that it is over, ``more`` that steps are added, ``note``
    leaves a line for good. Time left is ``left_s`` where the caller knows it, else extrapolated
    from the steps so far.
    """

    def __init__(self, title: str, steps: int) -> None:
        self.title, self.steps, self.done = visible(title), steps, 0
        self._started = time.monotonic()
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task(self.title, total=self.steps, left="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def doing(self, text: str) -> None:
        """Show what is running now; elsewhere than on a terminal nothing is printed."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=f"{self.title}: {visible(text)}")

    def more(self, steps: int) -> None:
        """That many steps have to be done again, or turned out to be needed."""
        self.steps += steps
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, total=self.steps)

    def step(self, text: str, left_s: float | None = None) -> None:
        """One step is over; ``text`` says with what result."""
        self.done += 1
        self.steps = max(self.steps, self.done)
        left = self._left(left_s)
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task,
                completed=self.done,
                total=self.steps,
                description=f"{self.title}: {visible(text)}",
                left=left,
            )
            return
        self._print(f"[{self.done}/{self.steps}] {visible(text)}{left and f', {left}'}")

    def note(self, text: str) -> None:
        """A line that stays, above the bar."""
        if self._bar is not None:
            self._bar.console.print(visible(text))
        else:
            self._print(visible(text))

    def _left(self, left_s: float | None) -> str:
        if left_s is None:
            if self.done >= self.steps:
                return ""
            elapsed = time.monotonic() - self._started
            left_s = elapsed / self.done * (self.steps - self.done)
        return f"{duration(left_s)} left" if left_s > 0 else ""

    def _print(self, line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _bar() -> RichProgress:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as RichProgress

    from kvbench.report.terminal import console

    return RichProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        console=console(stderr=True),
        transient=True,
    )
