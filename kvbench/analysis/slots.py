"""When each ring slot was in use: from its delivery's first byte to its last reader's end."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.records.capture import Capture


@dataclass(frozen=True)
class Occupied:
    """One use of one slot; nanoseconds on the capture's clock."""

    slot: int
    split: int
    start: int
    end: int


def occupied(capture: Capture) -> list[Occupied]:
    """Every use, in order of its start. Work that names no slot plays no part."""
    done: list[Occupied] = []
    current: dict[int, Occupied] = {}
    read: set[int] = set()
    named = (work for work in capture.work if work.slot >= 0)
    for work in sorted(named, key=lambda w: (w.start, w.end)):
        use = current.get(work.slot)
        refilled = work.kind == "copy" and work.slot in read
        if use is None or refilled or work.split != use.split:
            if use is not None:
                done.append(use)
            read.discard(work.slot)
            use = Occupied(work.slot, work.split, work.start, work.end)
        if work.kind != "copy":
            read.add(work.slot)
        current[work.slot] = Occupied(use.slot, use.split, use.start, max(use.end, work.end))
    return sorted([*done, *current.values()], key=lambda u: (u.start, u.slot))
