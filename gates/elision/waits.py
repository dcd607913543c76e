"""Gate ``elision``: stock, elided and quiet give one output, without races, at the table's counts.

S5 (same outputs, only synchronize calls fall), S4 (two devices keep every wait) and the exact
count of every site, for plain decoding and both drafts, eager and captured. What the bytes do not
show the happens-before check does, and what neither shows the counts do (S6).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from gates.elision.arms import MODEL, SHALLOW, Planted, decode, planted
from gates.registry import GateOptions
from kvbench.decoder.counts import WAIT_CALLS
from kvbench.decoder.session import DecodeRun
from kvbench.decoder.waits import Work, predicted
from kvbench.device.context import WaitMode
from kvbench.errors import DeviceError
from kvbench.records import Result
from kvbench.records.gate import Check, GateReport

DRAFTS = {"plain": "none", "prompt": "prompt", "shallow": SHALLOW}


def run(options: GateOptions) -> GateReport:
    """Every draft × eager and captured, under several orders of work."""
    started = time.monotonic()
    inject, model = planted(options), options.model or MODEL
    seeds = range(options.seed, options.seed + (1 if options.quick else 3))
    checks: list[Check] = []
    for name, draft in DRAFTS.items():
        for graphs in (False, True):
            options.progress(f"elision: {name}{', captured' if graphs else ''}")
            shape: dict[str, Any] = {"draft": draft, "graphs": graphs, "depth": 1}
            stock = decode(model, 1, waits="stock", **{**shape, **inject.common})
            checks += _control(f"{name}, {_how(graphs)}", stock, draft)
            for mode in ("elided", "quiet"):
                for seed in seeds:
                    where = f"{mode}: {name}, {_how(graphs)}, order {seed}"
                    try:
                        arm = _arm(model, 1, inject, waits=mode, **{**shape, "explore": seed})
                    except DeviceError as error:
                        checks.append(Check(f"runs: {where}", "failed", str(error)))
                        continue
                    checks += _against(where, mode, stock, arm, draft)
    checks += _two_devices(model, inject)
    inject.require_met()
    notes = ("quick: one order of work",) if options.quick else ()
    return GateReport(
        "elision", tuple(checks), "stock", notes=notes, seconds=time.monotonic() - started
    )


def _arm(model: str, sequences: int, inject: Planted, **settings: Any) -> DecodeRun:
    chosen = {**settings, **inject.common, **inject.settings}
    return decode(model, sequences, hooks=inject.hooks(), **chosen)


def _how(graphs: bool) -> str:
    return "captured" if graphs else "eager"


def _control(where: str, stock: DecodeRun, draft: str) -> Iterator[Check]:
    yield _check(f"stock counts: {where}", _counts("stock", stock.result, draft))
    yield _check(f"stock races: {where}", _races(stock))


def _against(
    where: str, mode: WaitMode, stock: DecodeRun, arm: DecodeRun, draft: str
) -> Iterator[Check]:
    same = {k: stock.result.hashes[k] == arm.result.hashes[k] for k in stock.result.hashes}
    wrong = [f"{k} hash differs from stock's" for k, equal in same.items() if not equal]
    yield _check(f"bytes: {where}", wrong)
    yield _check(f"races: {where}", _races(arm))
    yield _check(f"counts: {where}", _counts(mode, arm.result, draft))
    if mode == "elided":
        yield _check(f"calls: {where}", _calls(stock.result, arm.result))


def _races(done: DecodeRun) -> list[str]:
    found: list[str] = done.result.telemetry["races"]
    return found


def _calls(stock: Result, elided: Result) -> list[str]:
    """Every API call but the waits, and every counter, is as often made (S5)."""
    names = sorted((stock.counters.keys() | elided.counters.keys()) - set(WAIT_CALLS))
    pairs = [(n, stock.counters.get(n, 0), elided.counters.get(n, 0)) for n in names]
    wrong = [f"{name}: {a} in stock, {b} in elided" for name, a, b in pairs if a != b]
    moved = stock.bytes == elided.bytes
    return wrong if moved else [*wrong, f"bytes moved: {stock.bytes} against {elided.bytes}"]


def work_of(result: Result) -> dict[str, Work]:
    """What each context did in a run of one sequence, by the prefix of its sites."""
    c = result.counters
    if "draft_rounds" not in c:
        tokens = result.tokens + 2
        return {"": Work(tokens, tokens, tokens)}
    work = {"": Work(c["draft_rounds"], c["draft_rounds"], c["generated"])}
    steps, silent = c["draft_steps"], c["draft_catch_ups"]
    return work | ({"draft.": Work(steps + silent, steps, steps)} if steps else {})


def _counts(mode: WaitMode, result: Result, draft: str) -> list[str]:
    if mode == "quiet":
        return _quiet(result)
    wrong = []
    for prefix, work in work_of(result).items():
        for site, wanted in predicted(mode, work).items():
            found = result.waits.get(f"{prefix}{site}", (0, 0, 0))[:2]
            if found != wanted:
                wrong.append(
                    f"{prefix}{site}: {found[0]} made and {found[1]} elided, "
                    f"the table says {wanted[0]} and {wanted[1]}"
                )
    return wrong


def _quiet(result: Result) -> list[str]:
    """At most one real wait a token, none redundant. The ring's end is not the token loop's."""
    sites = {s: c for s, c in result.waits.items() if not s.endswith(("free ring", "grow"))}
    made = sum(count[0] for count in sites.values())
    tokens = result.tokens + 2
    wrong = [f"{made} real waits for {tokens} tokens"] if made > tokens else []
    return wrong + [f"{s}: {c[2]} redundant waits" for s, c in sites.items() if c[2]]


def _two_devices(model: str, inject: Planted) -> Iterator[Check]:
    stock = decode(model, 1, **{"waits": "stock", **inject.common, "devices": 2})
    for mode in ("elided", "quiet"):
        try:
            arm = _arm(model, 1, inject, waits=mode, devices=2)
        except DeviceError as error:
            yield Check(f"runs: {mode} on two devices", "failed", str(error))
            continue
        skipped = {s: c[1] for s, c in arm.result.waits.items() if c[1]}
        wrong = [f"{site}: {n} waits elided on two devices" for site, n in skipped.items()]
        yield _check(f"S4: {mode} on two devices keeps every wait", wrong)
        equal = stock.result.hashes == arm.result.hashes
        yield _check(f"bytes: {mode} on two devices", [] if equal else ["hashes differ"])


def _check(name: str, wrong: list[str]) -> Check:
    if not wrong:
        return Check(name, "passed", "holds")
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return Check(name, "mismatch", wrong[0] + more, conclusion="different")
