"""Gate: every byte of every window is delivered exactly once, from its own place, and no other.

The plan says which window each split has; the op log says what was really copied. Gaps between
sequences are never moved (T9), and nothing waits for an event that was never recorded (H21).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gates.registry import GateOptions
from gates.transport import checks
from gates.transport.harness import IssueOrder, model_of
from gates.transport.harness import run as run_scenario
from gates.transport.scenarios import Scenario
from kvbench.device.kvtypes import kv_type
from kvbench.device.oplog import Entry, OpLog
from kvbench.records.gate import GateReport, Outcome

STEP = 16
"""Bytes at a time: every row begins on a multiple of 16."""

STRICT = (
    "decode",
    "wait",
    "host",
    "host_carry",
    "depth2",
    "few",
    "deep_few",
    "graphs",
    "grow",
    "unified",
    "padded",
    "padded_q4",
    "hybrid",
    "device_layers",
    "eight",
    "small",
    "small_six",
)
"""Scenarios on one device in which no carried delivery is thrown away."""


def run(options: GateOptions) -> GateReport:
    """Compare copies with windows in every strict scenario."""

    def judge(scenario: Scenario) -> tuple[Outcome, str]:
        out = run_scenario(scenario, hooks=checks.planted(options), picker=IssueOrder(0))
        if out.error:
            return "failed", out.error
        problem, windows = verify(out.log, pitch_of(scenario))
        if problem:
            return "mismatch", problem
        if not windows:
            return "not checked", "no window was delivered"
        return "passed", f"{windows} windows, each byte once and from its own row"

    scenarios = [s for s in checks.chosen(options) if options.inject or s.name in STRICT]
    return checks.each("delivery", options, scenarios, judge)


def verify(log: OpLog, pitch: int) -> tuple[str, int]:
    """(what is wrong, windows checked): copies are collected per slot until their reader.

    Every graph reads and stores once per split, so that the n-th attention over a split belongs to
    its n-th store, whichever comes first.
    """
    pending: dict[tuple[str, int], list[Entry]] = {}
    stores: dict[tuple[str, int], Iterator[Entry]] = {
        key: iter(found) for key, found in _by_split(log, "store").items()
    }
    windows = 0
    for entry in log.entries:
        if entry.kind == "wait" and not entry.record:
            return f"{entry.queue} waits for {entry.label!r}, which was never recorded", windows
        if entry.kind != "op" or entry.split < 0:
            continue
        device = _device(entry)
        if entry.site in ("early", "late"):
            pending.setdefault((device, entry.slot), []).append(entry)
        elif entry.site == "attend":
            store = next(stores.get((device, entry.split), iter(())), None)
            if store is None:
                return f"split {entry.split}: rows were read and never stored", windows
            if entry.slot < 0:
                continue
            copies = pending.pop((device, entry.slot), [])
            problem = _window(entry, copies, store, pitch)
            if problem:
                return f"split {entry.split}, slot {entry.slot}: {problem}", windows
            windows += 1
    return "", windows


def _device(entry: Entry) -> str:
    return entry.queue.removeprefix("graph:").split("/")[0]


def _by_split(log: OpLog, site: str) -> dict[tuple[str, int], list[Entry]]:
    """Operations of ``site`` by device and split, in order."""
    found: dict[tuple[str, int], list[Entry]] = {}
    for entry in log.entries:
        if entry.kind == "op" and entry.split >= 0 and entry.site == site:
            found.setdefault((_device(entry), entry.split), []).append(entry)
    return found


def _window(attend: Entry, copies: list[Entry], store: Entry, pitch: int) -> str:
    """What is wrong with the deliveries that ``attend`` consumed.

    The store of this graph's new rows says where the host keeps them: the last row of each window
    must have come from there, and every other row from the same distance (rows are contiguous).
    """
    if not copies:
        return "nothing was delivered"
    foreign = next((c for c in copies if c.split != attend.split), None)
    if foreign is not None:
        return f"holds rows of split {foreign.split} ({foreign.label!r})"
    covered, source_of = _coverage(copies)
    twice = next((at for at, n in covered.items() if n > 1), None)
    if twice is not None:
        return f"byte {twice} of the ring is delivered {covered[twice]} times"
    home = store.writes[0].buffer
    stray = next((c for c in copies if c.reads[0].buffer is not home), None)
    if stray is not None:
        return f"{stray.label!r} reads {stray.reads[0].buffer.name}, not {home.name}"
    kept = {span.offset for span in store.writes}
    ring = copies[0].writes[0].buffer
    for span in (s for s in attend.reads if s.buffer is ring):
        gap = next((at for at in range(span.offset, span.end, STEP) if at not in covered), None)
        if gap is not None:
            return f"byte {gap} of the ring is read and was not delivered"
        start = source_of[span.offset]
        moved = next(
            (
                at
                for at in range(span.offset, span.end, STEP)
                if source_of[at] - start != at - span.offset
            ),
            None,
        )
        if moved is not None:
            return f"byte {moved} of the ring does not come from beside its neighbours"
        last = start + span.length - pitch
        if last not in kept:
            return f"the row at {home.name}[{last}] is taken for one that was just stored"
    return ""


def _coverage(copies: list[Entry]) -> tuple[Counter[int], dict[int, int]]:
    """How often each STEP bytes of the ring were written, and from where."""
    covered: Counter[int] = Counter()
    source_of: dict[int, int] = {}
    for copy in copies:
        (src,), (dst,) = copy.reads, copy.writes
        for i in range(dst.count):
            to, of = dst.offset + i * dst.pitch, src.offset + i * src.pitch
            for step in range(0, dst.length, STEP):
                covered[to + step] += 1
                source_of[to + step] = of + step
    return covered, source_of


def pitch_of(scenario: Scenario) -> int:
    """Allocated bytes of a row."""
    config = model_of(scenario.model).config
    name = str(scenario.settings.get("kv_type", "f16"))
    return kv_type(name, n_kv_heads=config.n_kv_heads, head_dim=config.head_dim).pitch
