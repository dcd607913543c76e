"""Property tests: random programs over random shapes give the ordered path's bytes, race-free."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gates.transport.harness import IssueOrder, Outcome, ordered
from gates.transport.harness import run as run_scenario
from gates.transport.program import (
    Clear,
    Decode,
    FreeMemory,
    Load,
    Mixed,
    Prefill,
    Reset,
    Save,
    Shift,
    Step,
    Truncate,
)
from gates.transport.scenarios import BY_NAME, Scenario
from kvbench.device.cpu.explorer import Picker
from kvbench.device.races import check

CAPACITY = 48
MODELS = {
    "synthetic:tiny,layers=2,vocab=128": "f16",
    "synthetic:tiny,layers=3,vocab=128": "f16",
    "synthetic:tiny,layers=5,vocab=128": "f16",
    "synthetic:tiny,layers=3,vocab=128,head_dim=32,heads=2,kv_heads=1": "q8_0",
    "synthetic:tiny,layers=4,vocab=128,head_dim=32,heads=2,kv_heads=1": "q4_0",
    "synthetic:tiny,layers=3,vocab=128,head_dim=64,heads=32,kv_heads=32": "f16",
}
"""The last is wide enough for a budget of 1 MiB to decline some graphs of a program (T12)."""
PROGRAMS = int(os.environ.get("KVBENCH_PROGRAMS", "0"))
"""How many programs a long run takes; 0: the tier's own number."""


@st.composite
def programs(draw: st.DrawFn, sequences: int, *, unified: bool) -> tuple[Step, ...]:
    """Valid engine calls, tracking lengths so that none is refused."""
    length, saved = [0] * sequences, [-1] * sequences
    steps: list[Step] = []

    def room(sequence: int) -> int:
        if unified:
            return sequences * CAPACITY - sum(length)
        return CAPACITY - length[sequence]

    for _ in range(draw(st.integers(2, 7))):
        sequence = draw(st.integers(0, sequences - 1))
        have, left = length[sequence], min(room(sequence), CAPACITY - length[sequence])
        kind = draw(
            st.sampled_from(
                [
                    "decode",
                    "decode",
                    "decode",
                    "prefill",
                    "prefill",
                    "mixed",
                    "shift",
                    "truncate",
                    "reset",
                    "clear",
                    "save",
                    "load",
                    "memory",
                ]
            )
        )
        if kind == "prefill" and left >= 1:
            count = draw(st.integers(1, left))
            steps.append(Prefill(sequence, count))
            length[sequence] += count
        elif kind == "decode":
            group = sorted(draw(st.sets(st.integers(0, sequences - 1), min_size=1)))
            most = min(
                min(room(s) for s in group) // (len(group) if unified else 1),
                min(CAPACITY - length[s] for s in group),
                6,
            )
            if most >= 1:
                count = draw(st.integers(1, most))
                steps.append(Decode(tuple(group), count, more=draw(st.booleans())))
                for s in group:
                    length[s] += count
        elif kind == "mixed" and sequences > 1 and left >= 2:
            other = (sequence + 1) % sequences
            if room(other) > left and length[other] < CAPACITY - 1:
                count = draw(st.integers(1, left - 1))
                steps.append(Mixed((other,), sequence, count))
                length[sequence] += count
                length[other] += 1
        elif kind == "shift" and have >= 2:
            keep = draw(st.integers(0, have - 1))
            discard = draw(st.integers(1, have - keep))
            steps.append(Shift(sequence, keep, discard))
            length[sequence] -= discard
        elif kind == "truncate" and have >= 1:
            count = draw(st.integers(1, have))
            steps.append(Truncate(sequence, count))
            length[sequence] -= count
        elif kind == "reset":
            steps.append(Reset(sequence))
            length[sequence] = 0
        elif kind == "clear":
            steps.append(Clear())
            length = [0] * sequences
        elif kind == "save" and have:
            steps.append(Save(sequence))
            saved[sequence] = have
        elif (
            kind == "load"
            and saved[sequence] >= 0
            and (not unified or room(sequence) + have >= saved[sequence])
        ):
            steps.append(Load(sequence))
            length[sequence] = saved[sequence]
        elif kind == "memory":
            steps.append(FreeMemory(draw(st.sampled_from([None, 0.05, 0.2]))))
    return tuple(steps)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """A program, a shape and settings."""
    model = draw(st.sampled_from(sorted(MODELS)))
    sequences = draw(st.integers(1, 3))
    unified = draw(st.booleans())
    chosen: dict[str, Any] = {
        "kv_type": MODELS[model],
        "unified": unified,
        "depth": draw(st.sampled_from([1, 1, 2, 4])),
        "tail": draw(st.sampled_from(["host", "device"])),
        "boundary": draw(st.sampled_from(["wait", "carry"])),
        "row_multiple": draw(st.sampled_from([4, 16, 64])),
        "device_layers": draw(st.sampled_from([0, 0, 1])),
        "budget_mib": draw(st.sampled_from([-1, 1])),
        "audit": draw(st.booleans()),
        "poison": True,
        "headroom_mib": 0,
    }
    if draw(st.booleans()):
        chosen["graphs"] = True
    elif draw(st.booleans()):
        chosen["devices"] = 2
    if chosen["tail"] == "host" and "graphs" not in chosen:
        chosen["loop"] = draw(st.sampled_from(["async", "blocking"]))
    program = draw(programs(sequences, unified=unified))
    return replace(
        BY_NAME["small"],
        name="random",
        program=program,
        model=model,
        settings=chosen,
        sequences=sequences,
        capacity=CAPACITY,
    )


def _wanted(scenario: Scenario) -> Outcome:
    """The ordered path's. A drawn limit can leave less memory than that path itself needs: such a
    program proves nothing, and is not counted as one that holds."""
    want = ordered(scenario)
    if want.error:
        assert "bytes of device memory" in want.error
        assume(False)
    return want


def _holds(scenario: Scenario, seed: int) -> None:
    want = _wanted(scenario)
    plain = run_scenario(scenario, picker=IssueOrder(0))
    assert (plain.error, plain.leaked) == ("", "")
    assert plain.digest == want.digest
    races = check(plain.log)
    assert not races, races[0].describe()
    other = run_scenario(scenario, picker=Picker(seed))
    assert (other.error, other.leaked, other.digest) == ("", "", want.digest)


ALL_CARRIED = replace(
    BY_NAME["small"],
    name="all carried",
    program=(Prefill(0, 3), Decode((0,), 1), Decode((0,), 2), Decode((0,), 2)),
    model="synthetic:tiny,layers=2,vocab=128",
    settings={"depth": 2, "row_multiple": 4, "graphs": True, "headroom_mib": 0, "poison": True},
    capacity=CAPACITY,
)
"""Captured graphs with nothing to deliver: the graph before carried all, and none follows."""

WINDOW_GROWS = replace(
    ALL_CARRIED,
    name="window grows",
    program=(
        FreeMemory(0.05),
        Prefill(0, 1),
        Decode((0,), 1),
        Decode((0,), 1),
        Mixed((1,), 0, 1),
        Decode((0,), 1),
    ),
    settings={
        **ALL_CARRIED.settings,
        "depth": 4,
        "tail": "host",
        "boundary": "wait",
        "row_multiple": 64,
    },
    sequences=2,
)
"""A captured ordered graph comes again after a wider one has replaced its window."""


@given(scenarios(), st.integers(0, 1 << 20))
@example(ALL_CARRIED, 0)
@example(WINDOW_GROWS, 0)
@settings(max_examples=300)
def test_programs(scenario: Scenario, seed: int) -> None:
    """T1-T20: bytes equal to the ordered path's, in issue order and in another; no race."""
    _holds(scenario, seed)


@pytest.mark.skipif(not PROGRAMS, reason="set KVBENCH_PROGRAMS to the number of programs")
@given(scenarios(), st.integers(0, 1 << 20))
@settings(max_examples=max(PROGRAMS, 1))
def test_many_programs(scenario: Scenario, seed: int) -> None:
    """The long run: KVBENCH_PROGRAMS of them."""
    _holds(scenario, seed)


@given(scenarios())
@settings(max_examples=25)
def test_programs_under_real_threads(scenario: Scenario) -> None:
    """The same on worker threads, with delays on every kind of operation."""
    want = _wanted(scenario)
    out = run_scenario(scenario, delays="jitter", delay_ms=0.3)
    assert (out.error, out.digest) == ("", want.digest)
