"""Plans, windows, prefixes, budgets and settings: the transport's arithmetic."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.decoder.settings import DecoderSettings
from kvbench.device.api import Capabilities
from kvbench.device.memory import Buffer
from kvbench.errors import SettingError
from kvbench.transport import budget
from kvbench.transport.budget import Decline
from kvbench.transport.plan import build, whole
from kvbench.transport.prefix import StablePrefix
from kvbench.transport.settings import MIB, TransportSettings, from_environment
from kvbench.transport.window import Geometry, Range, Storage, ranges


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Storage, Geometry, StablePrefix]:
    """Storage of some streams, a window over some of them, and a prefix for each."""
    streams = draw(st.integers(1, 5))
    capacity = draw(st.integers(1, 40))
    pitch = 16 * draw(st.integers(1, 4))
    buffer = Buffer("kv", "host", 2 * streams * capacity * pitch)
    active = tuple(sorted(draw(st.sets(st.integers(0, streams - 1), min_size=1))))
    prefix = StablePrefix(streams, pitch)
    for stream in range(streams):
        prefix.refresh(stream, draw(st.integers(0, 2 * capacity)))
    storage = Storage(buffer, streams, capacity, pitch)
    return storage, Geometry(active, draw(st.integers(1, capacity))), prefix


def _bytes(parts: tuple[Range, ...]) -> list[tuple[int, int]]:
    """(target, source) of every byte moved."""
    return [
        (p.target + i * p.target_pitch + j, p.source + i * p.source_pitch + j)
        for p in parts
        for i in range(p.count)
        for j in range(p.length)
    ]


@given(layouts(), st.sampled_from(["host", "device"]), st.integers(0, 4), st.sampled_from([1, 8]))
def test_early_and_late_are_the_window_once(
    layout: tuple[Storage, Geometry, StablePrefix], tail: str, depth: int, multiple: int
) -> None:
    """T2, T8, T9: the prefix decides when bytes move, never how many; gaps never move."""
    storage, geometry, prefix = layout
    settings = TransportSettings(depth=depth, tail=tail)  # type: ignore[arg-type]
    plan = build(
        generation=1,
        geometry=geometry,
        storages=[storage] * 5,
        prefix=prefix,
        settings=settings,
        phase=1,
        multiple=multiple,
    )
    everything = sorted(_bytes(whole(storage, geometry)))
    targets = [t for t, _ in everything]
    assert targets == list(range(geometry.window_bytes(storage.pitch)))
    for split, delivery in enumerate(plan.deliveries):
        assert sorted(_bytes(delivery.early) + _bytes(delivery.late)) == everything
        assert delivery.slot == (1 + split) % settings.n_slots
        assert (tail == "device") <= (not delivery.late)


@given(layouts())
def test_rows_come_from_their_own_stream(layout: tuple[Storage, Geometry, StablePrefix]) -> None:
    """T9: byte j of row r of lane s comes from byte j of row r of its stream, K and V."""
    storage, geometry, _ = layout
    moved = dict(_bytes(whole(storage, geometry)))
    for part in (0, 1):
        for lane, stream in enumerate(geometry.active):
            for row in range(geometry.rows):
                target = (
                    part * geometry.part_bytes(storage.pitch)
                    + (lane * geometry.rows + row) * storage.pitch
                )
                assert moved[target] == storage.row(part, stream, row)


@given(layouts())
def test_equal_neighbours_are_one_2d_copy(layout: tuple[Storage, Geometry, StablePrefix]) -> None:
    """T9: consecutive streams with equal rows make one copy for K and one for V."""
    storage, geometry, _ = layout
    parts = ranges(storage, geometry, tuple((0, geometry.rows) for _ in geometry.active))
    runs = 1 + sum(b - a > 1 for a, b in zip(geometry.active, geometry.active[1:], strict=False))
    assert len(parts) == 2 * runs


def test_an_empty_plan_stages_nothing() -> None:
    """T10: no splits, no deliveries, no bytes."""
    plan = build(
        generation=1,
        geometry=Geometry((0,), 4),
        storages=[],
        prefix=StablePrefix(1, 16),
        settings=TransportSettings(depth=1),
        phase=0,
    )
    assert plan.deliveries == () and plan.slot_bytes == 0


def test_a_reset_caps_only_its_own_stream() -> None:
    """T2, H12: another sequence's early region is as it was; rewriting is a new epoch (H13)."""
    prefix = StablePrefix(3, 16)
    for stream in range(3):
        prefix.refresh(stream, 10)
    prefix.cap(1, 2)
    assert prefix.rows == [10, 2, 10]
    epoch = prefix.epoch
    prefix.rewrite()
    assert prefix.rows == [0, 0, 0] and prefix.epoch == epoch + 1
    assert prefix.within(0, 4) == 0


@given(
    st.integers(1, 3000),
    st.integers(1, 64),
    st.integers(1, 4096),
    st.integers(0, 6),
    st.integers(1, 200),
)
def test_slots_are_aligned_and_hold_the_window(
    rows: int, lanes: int, pitch16: int, depth: int, budget_mib: int
) -> None:
    """T5, T12, T13: aligned also when the budget caps the size; declined when it does not fit."""
    pitch = 16 * pitch16
    geometry = Geometry(tuple(range(lanes)), rows)
    settings = TransportSettings(depth=depth, budget_mib=budget_mib)
    size = budget.slot_size(geometry, pitch, 4096, settings)
    if isinstance(size, Decline):
        assert settings.n_slots * (geometry.window_bytes(pitch) + 255) > budget_mib * MIB
        assert "would need" in size.detail
    else:
        assert size % budget.ALIGN == 0 and size >= geometry.window_bytes(pitch)
        assert size * settings.n_slots <= budget_mib * MIB


def test_a_growing_context_reallocates_by_powers_of_two() -> None:
    """T13: six sizes over a 16k prefill, not thirty-two."""
    settings = TransportSettings(depth=1, budget_mib=0)
    sizes = {
        budget.slot_size(Geometry((0,), rows), 64, 16384, settings)
        for rows in range(512, 16385, 512)
    }
    assert len(sizes) == 6


def test_what_a_device_must_declare() -> None:
    """T16: each missing capability is named; a sliced device is excluded and says so."""
    settings = TransportSettings(depth=1)
    assert budget.ineligible(Capabilities(), settings) is None
    for name in ("queue_event_waits", "async_copies", "pinned_host"):
        lacking = budget.ineligible(Capabilities(**{name: False}), settings)
        assert lacking is not None and name in lacking.detail
    sliced = budget.ineligible(Capabilities(sliced=True), settings)
    assert sliced is not None and sliced.reason == "sliced"
    buffered = budget.ineligible(Capabilities(input_copies=4), settings)
    assert buffered is not None and "4 copies" in buffered.detail


def test_borrowed_storage_is_no_candidate() -> None:
    """T3: a cache that borrows another's storage drops the annotation, and the graph is ordered."""
    own = Storage(Buffer("kv", "host", 2 * 4 * 16), 1, 4, 16)
    settings = TransportSettings(depth=1)
    assert budget.ineligible(Capabilities(), settings, [own]) is None
    borrowed = budget.ineligible(Capabilities(), settings, [own, own.lend()])
    assert borrowed is not None and borrowed.reason == "borrowed"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("depth", -1),
        ("depth", 9),
        ("depth", True),
        ("budget_mib", -2),
        ("budget_mib", 65_537),
        ("budget_mib", 1 << 64),
        ("headroom_mib", -1),
        ("row_multiple", 0),
        ("tail", "gpu"),
        ("boundary", ""),
        ("loop", "sync"),
        ("ablate", ("magic",)),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: object) -> None:
    """T12: refused with name, value and what is allowed; never clamped."""
    with pytest.raises(SettingError) as error:
        TransportSettings(**{name: value})  # type: ignore[arg-type]
    assert name in str(error.value) and "not allowed" in str(error.value)


def test_the_environment_is_parsed_strictly() -> None:
    """T12: a variable that is not a number is refused by its own name."""
    assert from_environment({"KVBENCH_DEPTH": "2"}) == {"depth": 2}
    with pytest.raises(SettingError, match="environment variable KVBENCH_RING_MIB"):
        from_environment({"KVBENCH_RING_MIB": "12MB"})


def test_settings_do_not_change_afterwards() -> None:
    """T15: a later setter raises, and says what stays."""
    settings = TransportSettings(depth=1)
    with pytest.raises(SettingError, match=r"depth = 2 \(setter after validation\).*stays 1"):
        settings.depth = 2
    assert settings.depth == 1


def test_the_decoder_has_the_transports_settings_and_defaults() -> None:
    """T12: one value on every device and at every door."""
    own, decoders = TransportSettings(), DecoderSettings()
    for field in dataclasses.fields(TransportSettings):
        assert getattr(decoders, field.name) == getattr(own, field.name)
