"""Gate: what makes the pipeline a gain is there, read off the op log (T6), without a clock.

Breaking any of these keeps every byte right and loses the gain: the number of slots, deliveries
issued after the split they follow, slots recycled queue to queue, no host wait inside a token, no
memory pinned on the way, and deliveries on a queue of their own.
"""

from __future__ import annotations

from collections.abc import Callable

from gates.registry import GateOptions
from gates.transport import checks
from gates.transport.harness import IssueOrder, settings_of
from gates.transport.harness import run as run_scenario
from gates.transport.scenarios import BY_NAME, Scenario
from kvbench.device.oplog import Entry, OpLog
from kvbench.records.capture import TOKEN
from kvbench.records.gate import GateReport, Outcome
from kvbench.transport.settings import TransportSettings

SCENARIOS = ("decode", "wait", "host_carry", "depth2", "depth4")
Rule = Callable[[list[Entry], TransportSettings], str]


def run(options: GateOptions) -> GateReport:
    """Every rule on every scenario; ``--settings ablate=...`` makes it fail."""

    def judge(scenario: Scenario) -> tuple[Outcome, str]:
        settings = settings_of(scenario)
        out = run_scenario(scenario, picker=IssueOrder(0), **options.settings)
        if out.error:
            return "failed", out.error
        entries = _tokens(out.log)
        for rule in RULES:
            problem = rule(entries, settings.transport())
            if problem:
                return "mismatch", problem
        return "passed", f"{len(RULES)} rules hold over {len(entries)} entries"

    names = ("decode",) if options.quick else SCENARIOS
    return checks.each("structure", options, [BY_NAME[n] for n in names], judge)


def _tokens(log: OpLog) -> list[Entry]:
    """The decode loop but for its first token, which has no token before it (H19)."""
    marks = [i for i, e in enumerate(log.entries) if e.kind == "mark" and e.label == TOKEN]
    stop = max(i for i, e in enumerate(log.entries) if e.kind == "host" and e.site == "read")
    return log.entries[marks[1] : stop]


def slots(entries: list[Entry], settings: TransportSettings) -> str:
    """N + 2 slots are in use."""
    used = {e.slot for e in entries if e.site == "early"}
    want = settings.depth + 2
    return "" if len(used) == want else f"{len(used)} slots are used, depth needs {want} (T6)"


def order(entries: list[Entry], settings: TransportSettings) -> str:
    """The delivery N ahead is issued after the split it follows, not before."""
    attends = [i for i, e in enumerate(entries) if e.kind == "op" and e.site == "attend"]
    for i, e in enumerate(entries):
        if e.kind != "op" or e.site != "early":
            continue
        before = [entries[a] for a in attends if a < i]
        splits = 1 + max(entries[a].split for a in attends)
        follows = (e.split - settings.depth) % splits
        if before and before[-1].split != follows and not _priming(entries, i, attends):
            return f"{e.label!r} is issued before split {follows} is queued (T6)"
    return ""


def _priming(entries: list[Entry], at: int, attends: list[int]) -> bool:
    """Whether this delivery primes a graph that nothing was carried for."""
    start = max((i for i in range(at) if entries[i].kind == "mark"), default=0)
    return not any(start < a < at for a in attends)


def recycling(entries: list[Entry], settings: TransportSettings) -> str:
    """A slot's release is waited for by the transfer queue, never by the host."""
    through_host = [e for e in entries if e.kind == "sync" and e.site == "release"]
    return "a slot is recycled through the host (T6)" if through_host else ""


def host_waits(entries: list[Entry], settings: TransportSettings) -> str:
    """Inside a token the host waits for nothing but the results it reads behind."""
    allowed = {"read", "staging"}
    found = [e for e in entries if e.kind == "sync" and e.site not in allowed]
    return f"the host waits inside a token at {found[0].site!r}" if found else ""


def allocations(entries: list[Entry], settings: TransportSettings) -> str:
    """Nothing is allocated or pinned inside the loop."""
    found = [e for e in entries if e.kind == "alloc"]
    return f"{found[0].label!r} inside the token loop" if found else ""


def own_queue(entries: list[Entry], settings: TransportSettings) -> str:
    """Deliveries are not on the queue that computes."""
    compute = {e.queue for e in entries if e.site == "attend"}
    mixed = [e for e in entries if e.site in ("early", "late") and e.queue in compute]
    return f"{mixed[0].label!r} is on the compute queue" if mixed else ""


RULES: tuple[Rule, ...] = (slots, order, recycling, host_waits, allocations, own_queue)
