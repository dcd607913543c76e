"""Scenarios: small programs on small models, each in a shape where some kind of fault can show.

Five layers over three slots, so that L mod slots is 2 and phases matter (H1); two layers, fewer
than slots; windows that cross their rounding; padding; unified holes; layer split; offloaded state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gates.transport.program import (
    Clear,
    Decode,
    FreeMemory,
    Load,
    Mixed,
    Prefill,
    Program,
    Reset,
    Save,
    Shift,
    Speculate,
    Truncate,
)

FIVE = "synthetic:tiny,layers=5"
TWO = "synthetic:tiny,layers=2"
SIX = "synthetic:tiny,layers=6"
BLOCKS = "synthetic:tiny,layers=4,head_dim=32,kv_heads=2,heads=2"
WIDE = "synthetic:tiny,layers=4,heads=8,kv_heads=8,head_dim=64"
"""Three slots of 1 MiB in all hold 170 rows: a longer window is declined."""
HYBRID = "synthetic:tiny-hybrid"

PAIR: Program = (Prefill(0, 40), Prefill(1, 23), Decode((0, 1), 6))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A program with a model, settings and a number of sequences."""

    name: str
    program: Program
    model: str = FIVE
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    sequences: int = 2
    capacity: int = 96
    device_mib: float | None = None


def _scenario(
    name: str,
    program: Program = PAIR,
    model: str = FIVE,
    *,
    sequences: int = 2,
    capacity: int = 96,
    **settings: Any,
) -> Scenario:
    base = {"depth": 1, "row_multiple": 16, "audit": True, "poison": True, "headroom_mib": 0}
    return Scenario(
        name, program, model, MappingProxyType({**base, **settings}), sequences, capacity
    )


_TURNS: Program = (
    Prefill(0, 40),
    Shift(0, 4, 9),
    Prefill(1, 23),
    Decode((0, 1), 4, more=True),
    Shift(0, 4, 9),
    Decode((0, 1), 4, more=True),
    Truncate(1, 3),
    Decode((0, 1), 3),
)
_RESET: Program = (
    Prefill(0, 40),
    Prefill(1, 40),
    Decode((0, 1), 4, more=True),
    Reset(1),
    Prefill(1, 9),
    Decode((0, 1), 4),
)
_SWITCH: Program = (
    Prefill(0, 40),
    Prefill(1, 42),
    Decode((0,), 3, more=True),
    Decode((1,), 3, more=True),
    Reset(1),
    Decode((0,), 1, more=True),
    Prefill(1, 5),
    Decode((1,), 3, more=True),
    Decode((0, 1), 3),
)
_MEMORY: Program = (
    Prefill(0, 20),
    Decode((0,), 3, more=True),
    FreeMemory(0.03),
    Prefill(1, 60),
    Decode((0, 1), 3, more=True),
    FreeMemory(None),
    Decode((0, 1), 3, more=True),
    FreeMemory(0.0),
    Decode((0, 1), 3),
)

_SMALL: Program = (Prefill(0, 13), Prefill(1, 6), Decode((0, 1), 4))
_FOUR = "synthetic:tiny,layers=4,vocab=128"
_LAST = "synthetic:tiny,layers=6,vocab=128"

SCENARIOS: tuple[Scenario, ...] = (
    _scenario("small", _SMALL, _FOUR, capacity=32),
    _scenario("small_wait", _SMALL, _FOUR, capacity=32, boundary="wait"),
    _scenario("small_host", _SMALL, _FOUR, capacity=32, tail="host"),
    _scenario("small_six", _SMALL, _LAST, capacity=32),
    _scenario(
        "small_graphs",
        (Prefill(0, 5), Prefill(1, 3), Decode((0, 1), 9)),
        _FOUR,
        capacity=32,
        graphs=True,
    ),
    _scenario("decode"),
    _scenario("wait", boundary="wait"),
    _scenario("host", boundary="wait", tail="host"),
    _scenario("host_carry", tail="host"),
    _scenario("depth2", model=SIX, depth=2),
    _scenario("depth4", model=SIX, depth=4),
    _scenario("few", model=TWO),
    _scenario("few_host", model=TWO, tail="host"),
    _scenario("deep_few", model=TWO, depth=4),
    _scenario("graphs", (Prefill(0, 29), Prefill(1, 12), Decode((0, 1), 12)), graphs=True),
    _scenario(
        "graphs_host",
        (Prefill(0, 29), Prefill(1, 12), Decode((0, 1), 12)),
        graphs=True,
        tail="host",
    ),
    _scenario(
        "mixed_graphs",
        (
            Prefill(0, 34),
            Decode((0,), 9, more=True),
            Mixed((0,), 1, 20),
            Decode((0, 1), 9, more=True),
            Mixed((0,), 1, 7),
            Decode((0, 1), 3),
        ),
        graphs=True,
    ),
    _scenario(
        "speculate", (Prefill(0, 40), Prefill(1, 23), Speculate(0, 6, 3), Speculate(1, 9, 7))
    ),
    _scenario(
        "speculate_host",
        (Prefill(0, 40), Speculate(0, 8, 5), Decode((0,), 3)),
        tail="host",
    ),
    _scenario(
        "late_stop",
        (
            Prefill(0, 40),
            Decode((0,), 6, more=True),
            Truncate(0, 4),
            Prefill(0, 20),
            Decode((0,), 3),
        ),
        tail="host",
    ),
    _scenario("blocking", tail="host", loop="blocking"),
    _scenario("grow", (Prefill(0, 29), Prefill(1, 41), Decode((0, 1), 10))),
    _scenario("grow_host", (Prefill(0, 29), Prefill(1, 41), Decode((0, 1), 10)), tail="host"),
    _scenario(
        "resize",
        (
            Prefill(0, 11),
            Decode((0,), 9, more=True),
            Prefill(1, 11),
            Decode((0,), 2, more=True),
            Decode((0, 1), 9),
        ),
    ),
    _scenario(
        "long_prompt",
        (Prefill(0, 64 * 14 + 3), Decode((0,), 3), Prefill(0, 64)),
        model=TWO,
        sequences=1,
        capacity=1000,
    ),
    _scenario("shift", _TURNS),
    _scenario("shift_host", _TURNS, tail="host"),
    _scenario("reset", _SWITCH),
    _scenario("reset_host", _RESET, tail="host"),
    _scenario(
        "clear",
        (
            Prefill(0, 40),
            Decode((0,), 4, more=True),
            Clear(),
            Prefill(0, 9),
            Clear(),
            Prefill(1, 30),
            Decode((0, 1), 4),
        ),
    ),
    _scenario(
        "save",
        (
            Prefill(0, 40),
            Save(0),
            Prefill(1, 23),
            Decode((0, 1), 4, more=True),
            Load(0),
            Decode((0, 1), 3, more=True),
            Save(1),
            Load(1),
            Decode((1,), 2),
        ),
    ),
    _scenario(
        "unified",
        (
            Prefill(0, 20),
            Prefill(1, 13),
            Decode((0, 1), 9),
            Reset(0),
            Prefill(0, 33),
            Decode((0, 1), 5),
        ),
        unified=True,
    ),
    _scenario(
        "unified_host",
        (Prefill(0, 20), Prefill(1, 13), Decode((0, 1), 5), Truncate(0, 8), Decode((0, 1), 4)),
        unified=True,
        tail="host",
    ),
    _scenario("padded", model=BLOCKS, kv_type="q8_0"),
    _scenario("padded_q4", model=BLOCKS, kv_type="q4_0", tail="host"),
    _scenario("split", devices=2),
    _scenario("split_host", (*_TURNS,), devices=2, tail="host"),
    _scenario("hybrid", model=HYBRID, offload_state=True),
    _scenario("hybrid_resident", model=HYBRID),
    _scenario("device_layers", device_layers=2),
    _scenario(
        "eight",
        tuple([Prefill(s, 9 + 5 * s) for s in range(8)] + [Decode(tuple(range(8)), 4)]),
        sequences=8,
    ),
    _scenario("memory", _MEMORY),
    _scenario(
        "declined",
        (Prefill(0, 192), Truncate(0, 62), Decode((0,), 3)),
        WIDE,
        sequences=1,
        capacity=256,
        budget_mib=1,
    ),
    _scenario(
        "declined_graphs",
        (Prefill(0, 150), Decode((0,), 24), Truncate(0, 20), Decode((0,), 4)),
        WIDE,
        sequences=1,
        capacity=256,
        budget_mib=1,
        graphs=True,
    ),
)

BY_NAME = {s.name: s for s in SCENARIOS}
