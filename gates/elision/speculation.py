"""Gate ``speculation``: drafting changes no byte, for every draft length, depth and batch."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

from gates.elision.arms import MODEL, SHALLOW, decode, planted
from gates.registry import GateOptions
from kvbench.decoder.draft import MAX_DRAFT
from kvbench.decoder.session import DecodeRun
from kvbench.errors import DeviceError
from kvbench.records.gate import Check, GateReport

HASHES = ("tokens", "logits", "audit")


def run(options: GateOptions) -> GateReport:
    """Draft lengths 1 to 15 × depth 0 and 1 × 1 and 3 sequences, and every path at length 7."""
    started = time.monotonic()
    inject, model = planted(options), options.model or MODEL
    lengths = [1, 7, MAX_DRAFT] if options.quick else list(range(1, MAX_DRAFT + 1))
    alone = {**inject.common, "resident": True, "depth": 0}
    plain = {n: decode(model, n, **alone) for n in (1, 3)}
    checks = []
    for name, sequences, shape in _shapes(lengths):
        options.progress(f"speculation: {name}")
        settings = {"explore": options.seed, **shape, **inject.common, **inject.settings}
        try:
            arm = decode(model, sequences, hooks=inject.hooks(), **settings)
        except DeviceError as error:
            checks.append(Check(name, "failed", str(error)))
            continue
        checks.append(_compare(name, plain[sequences], arm))
    inject.require_met()
    notes = ("quick: draft lengths 1, 7, 15",) if options.quick else ()
    return GateReport(
        "speculation", tuple(checks), "plain", notes=notes, seconds=time.monotonic() - started
    )


def _shapes(lengths: list[int]) -> list[tuple[str, int, dict[str, Any]]]:
    shapes: list[tuple[str, int, dict[str, Any]]] = []
    for length, depth, sequences in product(lengths, (0, 1), (1, 3)):
        shape: dict[str, Any] = {"draft": SHALLOW, "draft_length": length, "depth": depth}
        shapes.append((f"{length} drafted, depth {depth}, {sequences} sequences", sequences, shape))
    paths: dict[str, dict[str, Any]] = {
        "host tail": {"tail": "host"},
        "no carry": {"boundary": "wait"},
        "captured": {"graphs": True},
        "unified": {"unified": True},
        "stock waits": {"waits": "stock"},
        "prompt lookup": {"draft": "prompt"},
        "two devices": {"devices": 2},
    }
    for name, path in paths.items():
        shapes.append((name, 3, {"draft": SHALLOW, "depth": 1, **path}))
    return shapes


def _compare(name: str, plain: DecodeRun, arm: DecodeRun) -> Check:
    races: list[str] = arm.result.telemetry["races"]
    for kind in HASHES:
        if plain.result.hashes[kind] != arm.result.hashes[kind]:
            return Check(name, "mismatch", f"{kind} differ from plain decoding's")
    if races:
        return Check(name, "mismatch", races[0])
    c = arm.result.counters
    words = f"{c['generated']} tokens equal, {c['accepted']} of {c['drafted']} guesses accepted"
    return Check(name, "passed", words, conclusion="same")
