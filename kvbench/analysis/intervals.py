"""Sets of time, as sorted disjoint half-open intervals of integers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """All time covered by any of ``intervals``; empty and inverted ones cover nothing."""
    merged: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def intersection(a: Sequence[Interval], b: Sequence[Interval]) -> list[Interval]:
    """Time covered by both of two unions."""
    both: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            both.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return both


def total(intervals: Iterable[Interval]) -> int:
    """Length of a union."""
    return sum(end - start for start, end in intervals)


def gaps(covered: Sequence[Interval]) -> list[Interval]:
    """What lies between the parts of a union."""
    return [(a[1], b[0]) for a, b in itertools.pairwise(covered)]
