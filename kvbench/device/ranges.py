"""NVTX ranges in the domain "kvbench", for whoever records this process.

Off unless a tool injected itself (``NVTX_INJECTION64_PATH``) or ``KVBENCH_NVTX=1`` asks for it:
a timed run imports nothing and calls nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

DOMAIN = "kvbench"
MEASURED = "measured"
"""The range around the tokens that are judged: a profiler's capture range excludes warm-up."""


def wanted() -> bool:
    """Whether this process should emit ranges."""
    return os.environ.get("KVBENCH_NVTX") == "1" or "NVTX_INJECTION64_PATH" in os.environ


@cache
def _domain() -> Any:
    """The NVTX domain, None where nothing is emitted."""
    if not wanted():
        return None
    import nvtx

    return nvtx.get_domain(DOMAIN)


@cache
def _attributes(name: str) -> Any:
    return _domain().get_event_attributes(message=name)


_NOTHING = nullcontext()


def ranged(name: str) -> AbstractContextManager[None]:
    """A range on this thread around a block, closed also when the block fails.

    Tokens, splits, deliveries, waits, prefills and captures have one. In a captured graph the
    ranges of a token's parts mark the capture, not the replays.
    """
    return _NOTHING if _domain() is None else _pushed(name)


@contextmanager
def _pushed(name: str) -> Iterator[None]:
    domain = _domain()
    domain.push_range(_attributes(name))
    try:
        yield
    finally:
        domain.pop_range()


class Measured:
    """The range around what is judged: it starts and ends between tokens, inside other ranges."""

    def __init__(self) -> None:
        self._range: Any = None

    def start(self) -> None:
        """The clock starts."""
        if _domain() is not None:
            self._range = _domain().start_range(_attributes(MEASURED))

    def end(self) -> None:
        """The clock has stopped; harmless if it never started."""
        if self._range is not None:
            _domain().end_range(self._range)
            self._range = None
