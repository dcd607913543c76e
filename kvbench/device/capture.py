"""The op log as a capture: the source that every device has, without any tool.

API calls are named as CUDA names them, whatever device made them, so that the three sources fill
the same table. An entry of a launched graph is no API call: the launch is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kvbench.device.oplog import Entry, OpLog
from kvbench.records.capture import CAPTURE_VERSION, END, TOKEN, ApiCall, Capture, NamedRange, Work

WorkKind = Literal["kernel", "copy", "host"]

_CALLS = {
    "record": "cudaEventRecord",
    "wait": "cudaStreamWaitEvent",
    "launch": "cudaGraphLaunch",
}


def capture(
    log: OpLog,
    arm: str,
    *,
    tool: str,
    warmup: int = 0,
    token_count: int | None = None,
    waits: Mapping[str, tuple[int, int, int]] | None = None,
) -> Capture:
    """What ``log`` holds from its mark of token number ``warmup`` to the end of decoding.

    ``token_count``: tokens generated in it, where a step makes more than one. ``waits``: counts by
    site. Work that has no times is left out, which ``absent`` then says.
    """
    window = measured(log.entries, warmup)
    entries = window.entries
    work, absent = _work(entries)
    marks = [_ns(entry.issued) for entry in window.tokens]
    last = max([window.last_ns, *(w.end for w in work)])
    ranges = [
        NamedRange(TOKEN, start, stop)
        for start, stop in zip(marks, [*marks[1:], last], strict=True)
    ]
    if not ranges:
        absent["tokens"] = "the log has no marks named token"
    absent["API times"] = "the op log times waits only"
    return Capture(
        v=CAPTURE_VERSION,
        arm=arm,
        source="oplog",
        tool=tool,
        tokens=token_count if token_count is not None else len(ranges) or None,
        api=tuple(_calls(entries)),
        work=tuple(work),
        ranges=tuple(ranges),
        waits=dict(waits or {}),
        absent=absent,
    )


@dataclass(frozen=True)
class Window:
    """The entries of the measured part, and its ends on the log's clock in nanoseconds."""

    entries: Sequence[Entry]
    first_ns: int
    last_ns: int

    @property
    def tokens(self) -> list[Entry]:
        """The marks at which tokens start."""
        return [entry for entry in self.entries if _is_token(entry)]


def measured(entries: Sequence[Entry], warmup: int) -> Window:
    """Without the warm-up's tokens and what came before them, and without what came after."""
    starts = [i for i, entry in enumerate(entries) if _is_token(entry)]
    ends = [i for i, entry in enumerate(entries) if entry.kind == "mark" and entry.label == END]
    first = starts[warmup] if warmup < len(starts) else len(entries) if starts else 0
    last = ends[0] if ends else len(entries)
    inside = entries[first:last]
    times = [_ns(entry.issued) for entry in [*inside, *entries[last : last + 1]]]
    return Window(inside, min(times, default=0), max(times, default=0))


def _is_token(entry: Entry) -> bool:
    return entry.kind == "mark" and entry.label == TOKEN


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _calls(entries: Sequence[Entry]) -> list[ApiCall]:
    """One call an entry that the host made; issue times where the log has them."""
    calls = []
    for entry in entries:
        name = _name(entry)
        if name and (entry.graph == 0 or entry.kind == "launch"):
            start = _ns(entry.issued)
            end = _ns(entry.end) if entry.kind == "sync" else start
            calls.append(ApiCall(name, start, max(start, end), entry.site))
    return calls


def _name(entry: Entry) -> str:
    if entry.kind == "op":
        copying = "direction" in entry.tags
        return "cudaMemcpyAsync" if copying else "cudaLaunchKernel"
    if entry.kind == "sync":
        return "cudaStreamSynchronize" if "queue" in entry.tags else "cudaEventSynchronize"
    return _CALLS.get(entry.kind, "")


def _work(entries: Sequence[Entry]) -> tuple[list[Work], dict[str, str]]:
    """Operations that ran, with what each waited for on other queues."""
    work: list[Work] = []
    last: dict[str, int] = {}
    recorded: dict[int, int] = {}
    pending: dict[str, list[int]] = {}
    unrun = 0
    for entry in entries:
        if entry.kind == "record" and entry.queue in last:
            recorded[entry.record] = last[entry.queue]
        elif entry.kind == "wait" and entry.record in recorded:
            pending.setdefault(entry.queue, []).append(recorded[entry.record])
        elif entry.kind == "op" and entry.end > 0:
            last[entry.queue] = len(work)
            work.append(_one(entry, tuple(pending.pop(entry.queue, ()))))
        elif entry.kind == "op":
            unrun += 1
    absent = {"some work": f"{unrun} operations have no times"} if unrun else {}
    return work, absent


def _one(entry: Entry, after: tuple[int, ...]) -> Work:
    direction = str(entry.tags.get("direction", ""))
    kind: WorkKind = "copy" if direction else "kernel"
    return Work(
        kind=kind,
        queue=entry.queue.removeprefix("graph:"),
        label=entry.label,
        start=_ns(entry.start),
        end=_ns(entry.end),
        nbytes=entry.nbytes,
        direction=direction,
        site=entry.site,
        split=entry.split,
        slot=entry.slot,
        graph=entry.graph != 0,
        after=after,
    )
