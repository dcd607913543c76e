"""Tables from captures: API calls per arm and token, their order, ranges, overlap, gaps."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvbench.analysis import intervals
from kvbench.records.capture import ApiCall, Capture, Work, tokens


@dataclass(frozen=True)
class CallCount:
    """Calls of one API by one arm."""

    calls: int = 0
    ns: int = 0
    """Nanoseconds inside the calls, added up over threads; 0 where they are not timed."""


@dataclass(frozen=True)
class CallRow:
    """One API over all arms."""

    name: str
    arms: dict[str, CallCount]

    def change(self, arm: str, baseline: str) -> float | None:
        """Change of the number of calls in percent; None from zero."""
        before = self.arms[baseline].calls
        return None if before == 0 else 100.0 * (self.arms[arm].calls / before - 1)


def call_table(captures: Sequence[Capture]) -> list[CallRow]:
    """A row per API that any arm called, most calls first."""
    counts: dict[str, dict[str, CallCount]] = {}
    for capture in captures:
        calls: Counter[str] = Counter()
        spent: Counter[str] = Counter()
        for call in capture.api:
            calls[call.name] += 1
            spent[call.name] += call.end - call.start
        for name in calls:
            counts.setdefault(name, {})[capture.arm] = CallCount(calls[name], spent[name])
    names = [capture.arm for capture in captures]
    rows = [
        CallRow(api, {name: by_arm.get(name, CallCount()) for name in names})
        for api, by_arm in counts.items()
    ]
    return sorted(rows, key=lambda r: (-max(c.calls for c in r.arms.values()), r.name))


@dataclass(frozen=True)
class Overlap:
    """How much of an arm's copying ran beside its kernels; nanoseconds."""

    copy: int
    compute: int
    both: int
    wall: int

    @property
    def fraction(self) -> float | None:
        """Share of the copying that a kernel ran beside; None without copies."""
        return None if self.copy == 0 else self.both / self.copy

    @property
    def possible(self) -> float | None:
        """Share of what could overlap at most, min(copy, compute), that did."""
        most = min(self.copy, self.compute)
        return None if most == 0 else self.both / most


def overlap(capture: Capture) -> Overlap:
    """Copy and compute time as unions over all queues, and their intersection."""
    copies = intervals.union((w.start, w.end) for w in capture.work if w.kind == "copy")
    kernels = intervals.union((w.start, w.end) for w in capture.work if w.kind == "kernel")
    start, end = capture.span()
    both = intervals.intersection(copies, kernels)
    return Overlap(
        copy=intervals.total(copies),
        compute=intervals.total(kernels),
        both=intervals.total(both),
        wall=end - start,
    )


@dataclass(frozen=True)
class Gap:
    """A time in which no kernel ran on any queue; ``cause`` is what ended it, in words."""

    start: int
    ns: int
    cause: str


def longest_gaps(capture: Capture, count: int = 5) -> list[Gap]:
    """The longest gaps between kernels, longest first, and what they waited for."""
    kernels = sorted((w for w in capture.work if w.kind == "kernel"), key=lambda w: w.start)
    covered = intervals.union((w.start, w.end) for w in kernels)
    longest = sorted(intervals.gaps(covered), key=lambda g: g[0] - g[1])[:count]
    first_at = {w.start: w for w in reversed(kernels)}
    return [Gap(a, b - a, _cause(capture, a, b, first_at[b])) for a, b in longest]


def _cause(capture: Capture, start: int, end: int, waiting: Work) -> str:
    """The last thing that had to happen before ``waiting`` began at ``end``.

    Work counts if it ended in the last quarter of the gap: else the host was late.
    """
    awaited = [capture.work[i] for i in waiting.after]
    if not awaited:
        awaited = [w for w in capture.work if w.kind != "kernel"]
    soon = (end - start) // 4
    late = [w for w in awaited if w is not waiting and end - soon <= w.end <= end]
    copy = max(late, key=lambda w: w.end, default=None)
    calls = [c for c in capture.api if start < c.end <= end and _explains(c, start, end)]
    call = max(calls, key=lambda c: c.end, default=None)
    if copy is not None and (call is None or copy.end >= call.start):
        return f"{copy.label or copy.kind} on {copy.queue}"
    if call is not None:
        return f"the host, in {call.name}" + (f" at {call.site}" if call.site else "")
    return "the host, between its calls"


def _explains(call: ApiCall, start: int, end: int) -> bool:
    """Whether the host was held up by ``call``: it fills half of the gap or more."""
    return 2 * (call.end - max(call.start, start)) >= end - start


@dataclass(frozen=True)
class RangeSum:
    """All ranges of one name; nanoseconds."""

    name: str
    count: int
    ns: int


def range_sums(capture: Capture) -> list[RangeSum]:
    """NVTX ranges by name, largest total first."""
    counts: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for each in capture.ranges:
        counts[each.name] += 1
        spent[each.name] += each.end - each.start
    return [RangeSum(name, counts[name], ns) for name, ns in spent.most_common()]


def token_calls(capture: Capture) -> list[ApiCall] | None:
    """API calls of the token in the middle of the capture; None if tokens are not marked."""
    marked = tokens(capture)
    if not marked:
        return None
    middle = marked[len(marked) // 2]
    inside = [c for c in capture.api if middle.start <= c.start < middle.end]
    return sorted(inside, key=lambda c: c.start)


SELECTING = frozenset({"cudaGetDevice", "cudaSetDevice", "cuCtxGetCurrent", "cuCtxSetCurrent"})


@dataclass(frozen=True)
class OrderDiff:
    """How one token's API calls differ from the baseline's; ``lines`` start with " ", "-", "+"."""

    lines: list[str] = field(default_factory=list)
    same: bool = True


def order_diff(baseline: Capture, arm: Capture) -> OrderDiff | None:
    """The order of the API calls over one token; None where an arm's tokens are not marked.

    Calls that only select a device are left out here; the table of calls counts them.
    """
    before, after = token_calls(baseline), token_calls(arm)
    if before is None or after is None:
        return None
    a, b = (
        [_named(call) for call in calls if call.name not in SELECTING] for calls in (before, after)
    )
    if a == b:
        return OrderDiff()
    lines: list[str] = []
    matcher = difflib.SequenceMatcher(a=a, b=b, autojunk=False)
    for what, a0, a1, b0, b1 in matcher.get_opcodes():
        if what == "equal":
            lines += _folded(" ", a[a0:a1])
        else:
            lines += _folded("-", a[a0:a1]) + _folded("+", b[b0:b1])
    return OrderDiff(_blocks(lines), same=False)


def _named(call: ApiCall) -> str:
    return f"{call.name} ({call.site})" if call.site else call.name


def _folded(sign: str, names: Sequence[str]) -> list[str]:
    """Runs of the same call as one line with a count."""
    lines: list[str] = []
    position = 0
    while position < len(names):
        run = position
        while run < len(names) and names[run] == names[position]:
            run += 1
        times = f" × {run - position}" if run - position > 1 else ""
        lines.append(f"{sign} {names[position]}{times}")
        position = run
    return lines


def _blocks(lines: Sequence[str], longest: int = 40) -> list[str]:
    """Blocks of lines that repeat, as a model's layers do, written once with a count."""
    out: list[str] = []
    position = 0
    while position < len(lines):
        size, times = _repetition(lines, position, longest)
        block = list(lines[position : position + size])
        if times > 1:
            out += [f"  [{times} times:", *block, "  ]"]
        else:
            out += block
        position += size * times
    return out


def _repetition(lines: Sequence[str], start: int, longest: int) -> tuple[int, int]:
    """(lines, times) of the block at ``start`` whose repetitions cover most; (1, 1) if none."""
    best = (1, 1)
    for size in range(2, min(longest, (len(lines) - start) // 2) + 1):
        block = lines[start : start + size]
        times = 1
        while lines[start + times * size : start + (times + 1) * size] == block:
            times += 1
        if times > 1 and size * times > best[0] * best[1]:
            best = (size, times)
    return best
