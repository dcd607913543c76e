"""Speculation is lossless byte for byte, whatever is drafted, accepted and rolled back (H9)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.decoder.cache import KVCache
from kvbench.decoder.draft import lookup, shallow
from kvbench.decoder.model import open_model
from kvbench.decoder.session import DecodeRun, DecodeTask, run_task
from kvbench.decoder.settings import parse
from kvbench.decoder.speculation import Tally
from kvbench.decoder.waits import Work, predicted
from kvbench.errors import SettingError, UsageError
from tests.elision.runs import agreeing, decode, plain, prompts

DRAFT = "layers:2"


def same_bytes(done: DecodeRun, sequences: int, generate: int = 16) -> None:
    wanted = plain(sequences, generate)
    assert done.tokens == wanted.tokens
    assert done.sequence_hashes == wanted.sequence_hashes
    assert done.result.hashes["audit"] == wanted.result.hashes["audit"]
    assert done.result.telemetry["races"] == []


@pytest.mark.parametrize("length", range(1, 16))
@pytest.mark.parametrize("depth", [0, 1])
def test_every_draft_length_gives_the_plain_bytes(length: int, depth: int) -> None:
    done = decode(2, draft=DRAFT, draft_length=length, depth=depth)
    same_bytes(done, 2)
    counters = done.result.counters
    assert counters["generated"] == 2 * 18
    assert 0 < counters["accepted"] <= counters["drafted"]
    assert counters["accepted"] + counters["draft_rounds"] <= counters["generated"]


@pytest.mark.parametrize("waits", ["stock", "elided", "quiet"])
@pytest.mark.parametrize("draft", [DRAFT, "prompt"])
@pytest.mark.parametrize(
    "extra",
    [
        {"depth": 1, "tail": "host"},
        {"depth": 2, "boundary": "wait"},
        {"depth": 1, "graphs": True},
        {"depth": 1, "unified": True},
        {"depth": 1, "devices": 2},
        {"resident": True, "poison": True},
    ],
    ids=lambda e: "-".join(f"{k}={v}" for k, v in e.items()),
)
def test_every_shape_gives_the_plain_bytes(waits: str, draft: str, extra: dict[str, Any]) -> None:
    done = decode(3, waits=waits, draft=draft, **extra)
    same_bytes(done, 3)


@pytest.mark.parametrize("seed", range(12))
def test_any_legal_order_of_both_contexts_gives_the_plain_bytes(seed: int) -> None:
    same_bytes(decode(2, draft=DRAFT, depth=1, explore=seed, tail="host"), 2)


@pytest.mark.parametrize("draft", [DRAFT, "prompt"])
@pytest.mark.parametrize("sequences", [1, 2])
def test_counts_are_predicted_per_token_and_per_draft_step_s5(draft: str, sequences: int) -> None:
    stock = decode(sequences, draft=draft, depth=1, waits="stock")
    elided = decode(sequences, draft=draft, depth=1, waits="elided")
    counters = stock.result.counters
    graphs = counters["draft_rounds"]  # at most two sequences of eight rows: one batch a round
    target = Work(graphs, graphs, counters["generated"])
    drafted = Work(
        counters["draft_steps"] + counters["draft_catch_ups"],
        counters["draft_steps"],
        counters["draft_steps"] * sequences,
    )
    for mode, done in (("stock", stock), ("elided", elided)):
        waits = done.result.waits
        for site, (made, skipped) in predicted(mode, target).items():  # type: ignore[arg-type]
            assert waits[site][:2] == (made, skipped), (mode, site)
        for site, (made, skipped) in predicted(mode, drafted).items():  # type: ignore[arg-type]
            if draft != "prompt" and sequences == 1:
                assert waits[f"draft.{site}"][:2] == (made, skipped), (mode, site)
    real = [done.result.counters["queue_synchronize"] for done in (stock, elided)]
    assert 1 - real[1] / real[0] >= 0.658
    for key in stock.result.counters.keys() - {"queue_synchronize"}:
        assert stock.result.counters[key] == elided.result.counters[key], key
    assert stock.result.hashes == elided.result.hashes
    assert stock.result.bytes == elided.result.bytes


@pytest.mark.parametrize("draft", [DRAFT, "prompt"])
@pytest.mark.parametrize("extra", [{}, {"depth": 1}, {"depth": 1, "graphs": True}])
def test_quiet_waits_at_most_once_a_token(draft: str, extra: dict[str, Any]) -> None:
    done = decode(1, 40, draft=draft, waits="quiet", **extra)
    waits = done.result.waits
    made = sum(c[0] for site, c in waits.items() if site.removeprefix("draft.") in TOKEN_SITES)
    assert made == done.result.counters["draft_rounds"] <= done.result.counters["generated"]
    assert all(count[2] == 0 for count in waits.values())


TOKEN_SITES = {"read", "staging"}


def test_acceptance_is_counted_by_position() -> None:
    tally = Tally()
    tally.verified(3, 1)
    tally.verified(3, 3)
    tally.verified(1, 0)
    assert (tally.drafted, tally.accepted, tally.generated) == (7, 4, 7)
    assert tally.by_position() == [2 / 3, 1 / 2, 1 / 2]


def test_a_draft_that_is_the_target_is_always_right() -> None:
    """Every round accepts all it may, and the draft catches up by one row afterwards."""
    target = open_model("synthetic:tiny,layers=2,seed=3")
    task = DecodeTask(prompts(1), 24, snapshots=False)
    twin = {"draft": target.ref, "draft_length": 4, "depth": 1, "record": True}
    for waits in ("stock", "quiet"):
        done = run_task(target, parse({**twin, "waits": waits}), task)
        counters = done.result.counters
        assert counters["accepted"] == counters["drafted"]
        assert counters["draft_rounds"] == 5  # 4 rounds of 5 tokens, then 3 + 1
        assert counters["draft_catch_ups"] == 4
        assert done.result.telemetry["races"] == []
        assert done.tokens == run_task(target, parse({}), task).tokens


def test_rates_of_a_shallow_copy_are_measured_as_accepted() -> None:
    """One token drafted at a time: the share accepted is the share on which both agree."""
    done = decode(4, 60, draft=DRAFT, draft_length=1)
    counters = done.result.counters
    assert 0.6 < counters["accepted"] / counters["drafted"] < 0.9


# ------------------------------------------------------------------------------ prompt lookup
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 15))
def test_lookup_copies_what_followed_the_longest_ending(text: list[int], n: int) -> None:
    found = lookup(text, n, 3)
    if not found:
        assert all(text[i] != text[-1] for i in range(len(text) - 1))
        return
    sizes = [
        size
        for size in (1, 2, 3)
        if any(
            text[at : at + size] == text[-size:] and text[at + size : at + size + n] == found
            for at in range(len(text) - size)
        )
    ]
    assert sizes and len(found) <= n
    longer = max(sizes) + 1
    if longer <= min(3, len(text) - 1):
        ends = [text[at : at + longer] for at in range(len(text) - longer)]
        assert text[-longer:] not in ends


# ----------------------------------------------------------------------- the stable prefix, H9
@settings(max_examples=150)
@given(st.data())
def test_the_prefix_is_stable_whatever_is_accepted_h9(data: st.DataObject) -> None:
    """For every acceptance outcome, the next graph writes no row that was called stable."""
    sequences = data.draw(st.integers(1, 3))
    cache = KVCache(sequences, 96, 16, row_multiple=data.draw(st.sampled_from([1, 8, 64])))
    for s in range(sequences):
        cache.append([(s, data.draw(st.integers(1, 40)))])
    for _ in range(data.draw(st.integers(1, 3))):
        taken = {s: data.draw(st.integers(1, 8)) for s in range(sequences)}
        rows = cache.append(sorted(taken.items()))
        ahead = {s: data.draw(st.integers(1, 8)) for s in range(sequences)}
        following = cache.following(rows, ahead)
        starts = {s: cache.length(s) - taken[s] for s in taken}
        for s, start in starts.items():
            accepted = data.draw(st.integers(0, taken[s] - 1))
            cache.truncate(s, start + 1 + accepted)
            assert cache.prefix.rows[s] <= start + 1, "a rejected row is never stable"
        assumed = {s: start + 1 for s, start in starts.items()}
        if any(cache.length(s) + ahead[s] > cache.capacity for s in taken):
            return
        upcoming = cache.append([(s, data.draw(st.integers(1, ahead[s]))) for s in taken], assumed)
        if following is not None:
            geometry, stable = following
            assert cache.geometry(upcoming) == geometry
            for lane, stream in enumerate(geometry.active):
                written = [r.where.cell for r in upcoming if r.where.stream == stream]
                assert stable[lane] <= min(written)
                assert cache.prefix.rows[stream] == min(stable[lane], min(written))


def test_a_prefix_of_full_acceptance_is_caught_h9() -> None:
    """The fault: take all drafted rows for stable. The host row is rewritten under the copy."""
    from kvbench.decoder.faults import DelayHooks
    from kvbench.transport.hooks import TransportHooks

    assert issubclass(DelayHooks, TransportHooks)

    class Hopeful(DelayHooks):
        def prefix(self, stream: int, rows: int) -> int:
            return rows + 4

    task = DecodeTask(prompts(1), 24, snapshots=False)
    chosen = parse({"draft": DRAFT, "depth": 1, "tail": "host", "record": True})
    done = run_task(agreeing(), chosen, task, hooks=Hopeful())
    assert any(
        "read after write" in r or "write after read" in r for r in done.result.telemetry["races"]
    )


# --------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("given_settings", "words"),
    [
        ({"draft": "layers:4"}, "layers:1 to layers:3"),
        ({"draft": "layers:0"}, "layers:1 to layers:3"),
        ({"draft": "layers:two"}, "K a whole number"),
        ({"draft": "synthetic:small"}, "vocabulary of 512, not 4096"),
        ({"draft": "nonsense"}, "nonsense"),
        ({"draft": "prompt", "draft_length": 16}, "from 1 to 15"),
        ({"draft": "prompt", "draft_length": 0}, "from 1 to 15"),
    ],
)
def test_an_impossible_draft_is_refused_in_one_line(
    given_settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        decode(1, 4, **given_settings)
    assert "\n" not in str(refused.value)


def test_recurrent_layers_cannot_be_rolled_back() -> None:
    hybrid = open_model("synthetic:tiny-hybrid")
    with pytest.raises(SettingError, match="cannot go back in time"):
        run_task(hybrid, parse({"draft": "prompt"}), DecodeTask([[1, 2]], 4, snapshots=False))


def test_forced_tokens_exclude_a_draft() -> None:
    task = DecodeTask([[1, 2]], 2, teacher=[[1, 1]], snapshots=False)
    with pytest.raises(UsageError, match="exclude each other"):
        run_task(agreeing(), parse({"draft": "prompt"}), task)


def test_a_shallow_copy_shares_the_weights() -> None:
    copy = shallow(agreeing(), 2)
    assert copy.weights is agreeing().weights
    assert copy.config.n_layers == 2 and copy.digest != agreeing().digest
