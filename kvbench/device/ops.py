"""Operations: what is queued, what it reads and writes, and what it would cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kvbench.device.memory import Span

Kind = Literal["kernel", "copy", "host"]
Spans = Sequence[Span] | Callable[[], Sequence[Span]]


@dataclass(eq=False, slots=True)
class Op:
    """One queued operation.

    ``run`` receives the executing queue's native handle (None on the cpu device, a CuPy stream on
    CUDA) and does the work. ``reads`` and ``writes`` may be callables: a captured graph's
    operations move on at each replay, and their spans are resolved when the work is issued.
    """

    kind: Kind
    label: str
    run: Callable[[Any], None]
    reads: Spans = ()
    writes: Spans = ()
    site: str = ""
    """What the operation is for ("early", "late", "ordered", "store", "attend" ...): faults,
    delays, telemetry and byte counts address operations by site."""
    split: int = -1
    """Position of the layer among the transported layers, −1 where it has none."""
    slot: int = -1
    nbytes: int = 0
    """Payload of a copy, or device-memory traffic of a kernel (for the virtual clock)."""
    flops: int = 0
    tags: dict[str, Any] = field(default_factory=dict)

    def spans(self) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
        """(reads, writes) as they stand now."""
        reads = self.reads() if callable(self.reads) else self.reads
        writes = self.writes() if callable(self.writes) else self.writes
        return tuple(reads), tuple(writes)
