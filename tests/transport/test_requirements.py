"""Requirements of the transport that need a whole engine, by their numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gates.transport.harness import IssueOrder, Outcome, ordered
from gates.transport.harness import run as run_scenario
from gates.transport.program import (
    Clear,
    Decode,
    Load,
    Mixed,
    Prefill,
    Program,
    Reset,
    Save,
    Shift,
    Truncate,
)
from gates.transport.recovery import FailAt
from gates.transport.scenarios import BLOCKS, BY_NAME, FIVE, HYBRID, SIX, TWO, Scenario
from kvbench.decoder.engine import Engine
from kvbench.decoder.faults.waits import NoDrain
from kvbench.decoder.faults.work import UnclearedMemory
from kvbench.decoder.model import open_model
from kvbench.decoder.settings import parse
from kvbench.device.cpu.explorer import ExplorerDevice, Schedule
from kvbench.device.races import check
from kvbench.transport.budget import ALIGN, Decline, slot_size
from kvbench.transport.ring import open_ring
from kvbench.transport.settings import TransportSettings
from kvbench.transport.telemetry import Telemetry
from kvbench.transport.window import Geometry

BASE = {"row_multiple": 16, "audit": True, "poison": True, "headroom_mib": 0}


def scenario(
    program: Program, model: str = FIVE, sequences: int = 2, capacity: int = 96, **settings: Any
) -> Scenario:
    return replace(
        BY_NAME["decode"],
        name="requirement",
        program=program,
        model=model,
        sequences=sequences,
        capacity=capacity,
        settings={**BASE, **settings},
    )


def same_bytes(wanted: Scenario) -> Outcome:
    """Runs it: the ordered path's bytes, no race, nothing left behind."""
    out = run_scenario(wanted, picker=IssueOrder(0))
    assert (out.error, out.leaked) == ("", "")
    assert out.digest == ordered(wanted).digest
    assert check(out.log) == []
    return out


def test_the_prefix_follows_each_graph_and_a_shift_clears_it() -> None:
    """T1: refreshed on every micro-batch, a reused graph's too; it is most of the bytes."""
    settings = parse({**BASE, "row_multiple": 1, "depth": 1, "tail": "host"})
    with Engine(open_model(TWO), settings, 1, 256) as engine:
        prefix = engine.cache.prefix
        engine.prefill(0, list(range(1, 201)))
        seen: list[int] = []
        moved = engine.stages[0].pipeline.telemetry.bytes
        before = dict(moved)
        engine.generate({0: 1}, 4, lambda step: seen.append(prefix.rows[0]))
        early, late = (moved[kind] - before.get(kind, 0) for kind in ("early", "late"))
        assert prefix.rows == [203] and seen == sorted(seen)
        assert 0.985 <= early / (early + late) <= 0.996
        epoch = prefix.epoch
        engine.shift(0, 4, 10)
        assert prefix.rows == [0] and prefix.epoch == epoch + 1


def test_a_carry_is_used_where_it_fits_and_counted_where_not() -> None:
    """T4a: validated by plan and epoch; what was delivered in vain is in the record (H11)."""
    steady = run_scenario(BY_NAME["decode"], picker=IssueOrder(0)).telemetry[0]
    assert steady.carried and not steady.bytes["wasted"]
    changed = run_scenario(BY_NAME["reset"], picker=IssueOrder(0)).telemetry[0]
    assert changed.bytes["wasted"] and changed.stops["carry does not fit"]


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("budget_mib", [1, 17, 101, 128])
def test_slots_start_aligned_whatever_caps_them(depth: int, budget_mib: int) -> None:
    """T5: also at the budget of 17 MiB that crashed the origin."""
    settings = TransportSettings(depth=depth, budget_mib=budget_mib)
    size = slot_size(Geometry((0,), 900), 272, 1 << 20, settings)
    assert not isinstance(size, int) or size % ALIGN == 0
    assert isinstance(size, int) or budget_mib == 1


def test_a_fresh_ring_is_cleared() -> None:
    """T5: padding is never uninitialised memory, though fresh memory is poisoned (T17a)."""
    with ExplorerDevice("d", schedule=Schedule(IssueOrder(0)), poison=True) as device:
        ring = open_ring(device, 3, 512)
        assert not ring.buffer.raw.any()
        assert device.alloc("scratch", 512, clear=False).raw.any()


def test_release_is_armed_though_the_split_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """T7: and what was in flight is waited for before its memory goes."""
    with Engine(open_model(FIVE), parse({**BASE, "depth": 1}), 1, 64) as engine:
        engine.prefill(0, [1, 2, 3])
        (stage,) = engine.stages
        ring = stage.pipeline.ring
        assert ring is not None
        slot, before = ring.cursor, list(ring.release)
        with monkeypatch.context() as patch:
            patch.setattr(stage.kernels, "attend", _fails)
            with pytest.raises(ArithmeticError):
                engine.prefill(0, [4, 5, 6])
        assert ring.release[slot] is not None and ring.release[slot] != before[slot]
        devices = list(engine.devices)
    assert all(not any(d.used_bytes.values()) and not d.live_events for d in devices)


def _fails(*_: object, **__: object) -> None:
    raise ArithmeticError("planted")


@pytest.mark.parametrize("step", ["ring", "event", "queue", "plan"])
def test_one_device_declines_and_the_other_goes_on(step: str) -> None:
    """T11: one ring, cursor and budget per device; no trace of staging is left on the first."""
    wanted = BY_NAME["split"]
    alone = FailAt(step, 10**6, forever=True)
    run_scenario(wanted, hooks=alone, depth=0, picker=IssueOrder(0))
    hooks = FailAt(step, alone.seen, forever=False)
    out = run_scenario(wanted, hooks=hooks, picker=IssueOrder(0))
    assert hooks.failed and (out.error, out.leaked) == ("", "")
    assert out.digest == ordered(wanted).digest
    first, second = out.telemetry
    assert first.declines["allocation"] == 1 and not second.declines
    assert second.staged_graphs == second.graphs


def test_a_graph_without_memory_takes_the_rings_place_once() -> None:
    """T14: release what holds memory, retry on the ordered path, and stay there."""
    hooks = FailAt("graph", 0, forever=True)
    wanted = BY_NAME["graphs"]
    out = run_scenario(wanted, hooks=hooks, picker=IssueOrder(0))
    assert (out.error, out.leaked, out.digest) == ("", "", ordered(wanted).digest)
    assert hooks.failed == 2 and out.telemetry[0].declines["graph"] > 2


@pytest.mark.parametrize("resident", [False, True])
def test_clearing_waits_for_every_reader(resident: bool) -> None:
    """T17: a delivery of a host-resident cache, the graph itself of a device-resident one."""
    program = (Prefill(0, 40), Decode((0,), 4, more=True), Clear(), Prefill(0, 9), Decode((0,), 3))
    wanted = scenario(program, depth=0 if resident else 1, resident=resident)
    same_bytes(wanted)
    if not resident:
        faulty = run_scenario(wanted, hooks=NoDrain("clear"), picker=IssueOrder(0))
        assert any("clear" in race.describe() for race in check(faulty.log))


def test_padding_that_was_not_cleared_shows() -> None:
    """T17a: kernels read whole blocks; poisoned memory makes the difference certain."""
    wanted = BY_NAME["padded"]
    faulty = run_scenario(wanted, hooks=UnclearedMemory(), picker=IssueOrder(0))
    assert faulty.digest != ordered(wanted).digest


@pytest.mark.parametrize("arm", [{"depth": 0}, {"depth": 0, "resident": True}])
def test_what_does_not_stage_creates_nothing(arm: dict[str, Any]) -> None:
    """T18: no queue, no event, no ring; working buffers are the same in every arm."""
    used = []
    for settings in (arm, {"depth": 1}):
        with Engine(open_model(FIVE), parse({**BASE, **settings}), 1, 64) as engine:
            engine.prefill(0, list(range(1, 31)))
            engine.generate({0: 1}, 3, lambda step: None)
            staging = engine.stages[0].pipeline.staging
            ring = staging.ring.buffer.nbytes if staging.ring is not None else 0
            kept = sum(a.nbytes for a in _kept(engine))
            used.append(engine.devices[0].used_bytes["device"] - ring - kept)
            if settings is arm:
                assert (staging.ring, staging.transfer, staging.events) == (None, None, {})
                assert len(engine.devices[0].queues) == 1
    assert used[0] == used[1] or arm.get("resident")


def _kept(engine: Engine) -> list[Any]:
    buffers = [s.buffer for s in engine.cache.storages]
    return [b for b in buffers if b.space == "device"]


TWO_SEQUENCES: Program = (Prefill(0, 21), Prefill(1, 9), Decode((0, 1), 4))


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_kv_types_pinned_or_not_at_every_depth(kv_type: str, pinned: bool, depth: int) -> None:
    """T19: allocation padding included; depth 0 is what each is compared with."""
    out = same_bytes(scenario(TWO_SEQUENCES, BLOCKS, kv_type=kv_type, pinned=pinned, depth=depth))
    assert out.telemetry[0].staged_graphs


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("sequences", [1, 2, 4, 8])
def test_parallel_sequences(unified: bool, sequences: int) -> None:
    """T19, T9: per-sequence prefixes, packed 2D deliveries, or one stream for all."""
    together = tuple(range(sequences))
    program = (*(Prefill(s, 5 + 4 * s) for s in together), Decode(together, 4))
    same_bytes(scenario(program, TWO, sequences, 48, unified=unified, depth=1))


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (FIVE, {"device_layers": 2}),
        (HYBRID, {"offload_state": True}),
        (HYBRID, {}),
        (SIX, {"devices": 2}),
        (SIX, {"devices": 2, "tail": "host", "boundary": "wait"}),
        (FIVE, {"graphs": True}),
    ],
)
def test_other_shapes(model: str, settings: dict[str, Any]) -> None:
    """T19: device-resident layers, recurrent layers, two devices; captured graphs."""
    out = same_bytes(scenario(TWO_SEQUENCES, model, depth=1, **settings))
    assert all(t.staged_graphs for t in out.telemetry)


@pytest.mark.parametrize("path", [{}, {"tail": "host"}, {"boundary": "wait"}, {"unified": True}])
def test_every_call_between_graphs(path: dict[str, Any]) -> None:
    """T20: shift, removal, reset, clear, save and load, micro-batches, mixed batches."""
    program: Program = (
        Prefill(0, 70),
        Prefill(1, 12),
        Decode((0, 1), 3, more=True),
        Shift(0, 4, 9),
        Mixed((0,), 1, 7),
        Save(1),
        Truncate(0, 5),
        Decode((0, 1), 2, more=True),
        Reset(1),
        Load(1),
        Decode((0, 1), 2, more=True),
        Clear(),
        Prefill(0, 6),
        Decode((0,), 3),
    )
    same_bytes(scenario(program, depth=1, **path))


def test_a_decline_is_told_once_until_there_is_a_ring_again() -> None:
    """T13, T12: the warning is not the counter; it says what the full context would need."""
    (telemetry,) = run_scenario(BY_NAME["declined_graphs"], picker=IssueOrder(0)).telemetry
    told = telemetry.warnings
    assert telemetry.declines["budget"] > len(told) == len(set(told)) >= 1
    assert "exceed the budget of 1 MiB" in told[0] and "full context of 256 rows" in told[0]
    again = Telemetry()
    for _ in range(3):
        again.decline(Decline("headroom", "too little"))
    again.ring(1)
    again.decline(Decline("headroom", "too little"))
    assert (again.declines["headroom"], len(again.warnings)) == (4, 2)
