"""Conversations on kept history: equal in all arms, stops found late are drained (H10)."""

from __future__ import annotations

from typing import Any

import pytest

from kvbench.decoder.conversation import ConversationRun, ConversationTask, run_conversations
from kvbench.decoder.faults import DelayHooks
from kvbench.decoder.settings import parse
from kvbench.errors import UsageError
from tests.elision.runs import agreeing

OPENING = [(7 * i) % 50 for i in range(40)]
CONVERSATIONS = [[OPENING, [1, 2, 3]], [[9, 8, 7] * 9], [OPENING[:17], [4] * 5, [6] * 7]]


def talk(
    cap: int = 10, stops: frozenset[int] = frozenset(), hooks: Any = None, **settings: Any
) -> ConversationRun:
    task = ConversationTask(CONVERSATIONS, cap, stops, warmup=2, detail=True)
    chosen = parse({"record": True, "audit": True, "row_multiple": 16, **settings})
    return run_conversations(agreeing(), chosen, task, hooks=hooks)


@pytest.fixture(scope="module")
def plain() -> ConversationRun:
    return talk(resident=True)


@pytest.fixture(scope="module")
def stops(plain: ConversationRun) -> frozenset[int]:
    """Tokens that the model says in mid-answer."""
    return frozenset({plain.tokens[0][4], plain.tokens[2][3]})


@pytest.fixture(scope="module")
def stopped(stops: frozenset[int]) -> ConversationRun:
    return talk(stops=stops, resident=True)


@pytest.mark.parametrize("waits", ["stock", "elided", "quiet"])
@pytest.mark.parametrize("draft", ["none", "layers:2", "prompt"])
@pytest.mark.parametrize("extra", [{"depth": 1, "tail": "host"}, {"depth": 1, "graphs": True}])
def test_every_arm_says_the_same(
    waits: str, draft: str, extra: dict[str, Any], stops: frozenset[int], stopped: ConversationRun
) -> None:
    done = talk(stops=stops, waits=waits, draft=draft, **extra)
    assert done.tokens == stopped.tokens
    assert done.result.hashes == stopped.result.hashes
    assert done.result.counters["stopped"] >= 2
    assert done.result.telemetry["races"] == []


@pytest.mark.parametrize("waits", ["elided", "quiet"])
@pytest.mark.parametrize("draft", ["none", "layers:2"])
def test_every_arm_says_the_same_without_stops(
    waits: str, draft: str, plain: ConversationRun
) -> None:
    done = talk(waits=waits, draft=draft, depth=1)
    assert done.tokens == plain.tokens
    assert done.result.hashes == plain.result.hashes
    assert done.result.telemetry["races"] == []


def test_counts_and_metrics_of_conversations(plain: ConversationRun) -> None:
    c = plain.result.counters
    said = [2 * 10, 10, 3 * 10]
    assert [len(row) for row in plain.tokens] == said
    assert (c["conversations"], c["turns"]) == (3, 6)
    # Kept: the opening and all but the last token of the answer, before each later turn.
    kept = (40 - 1 + 10) + (17 - 1 + 10) + (17 + 10 + 5 + 10 - 1)
    assert c["reused_tokens"] == kept == plain.result.metrics["cached_tokens"]
    assert c["prompt_tokens"] == 39 + 3 + 26 + 16 + 5 + 7
    m = plain.result.metrics
    assert set(m) >= {"conversation_tok_s", "conversation_latency_s", "ttft_s"}
    assert 0 < m["ttft_s"] < m["conversation_latency_s"]
    assert plain.result.tokens == sum(said)


def test_history_is_kept_as_decoded(plain: ConversationRun) -> None:
    """The second answer is the one that follows the whole text decoded afresh."""
    text = [*OPENING, *plain.tokens[0][:10], 1, 2, 3]
    afresh = run_conversations(
        agreeing(), parse({"resident": True}), ConversationTask([[text]], 10, detail=True)
    )
    assert afresh.tokens[0] == plain.tokens[0][10:]


def test_a_stop_found_late_overruns_and_is_cut_back_h10(stops: frozenset[int]) -> None:
    quiet = talk(stops=stops, waits="quiet", depth=1, lag=4)
    elided = talk(stops=stops, waits="elided", depth=1)
    assert quiet.result.counters["overrun"] > 0 == elided.result.counters["overrun"]
    assert quiet.tokens == elided.tokens


class NoDrain(DelayHooks):
    """Leaves out the drain between turns, and if told so the wait for a discarded carry too."""

    def __init__(self, *dropped: str) -> None:
        super().__init__()
        self.dropped = dropped

    def drains(self, reason: str) -> bool:
        return reason != "turn"

    def keep_wait(self, queue: str, site: str, event: str) -> bool:
        return site not in self.dropped


def test_an_undrained_overrun_is_caught_h10(stops: frozenset[int]) -> None:
    shape: dict[str, Any] = {"waits": "quiet", "depth": 1, "tail": "host", "lag": 4}
    twice_safe = talk(stops=stops, hooks=NoDrain(), **shape)
    assert twice_safe.result.telemetry["races"] == [], "the discarded carry is waited for as well"
    broken = talk(stops=stops, hooks=NoDrain("discard"), **shape)
    assert broken.result.telemetry["races"], "prefill rewrites rows that a copy is still reading"


def test_an_end_that_the_template_repeats_is_taken_once(plain: ConversationRun) -> None:
    stop = plain.tokens[0][4]
    task = ConversationTask([[OPENING, [stop, 1, 2]]], 10, frozenset({stop}), detail=True)
    repeated = run_conversations(agreeing(), parse({"resident": True}), task)
    task = ConversationTask([[OPENING, [1, 2]]], 10, frozenset({stop}), detail=True)
    plainly = run_conversations(agreeing(), parse({"resident": True}), task)
    assert repeated.tokens == plainly.tokens


def test_a_charged_wait_is_labelled_and_paid() -> None:
    charged = talk(waits="elided", wait_cost_us=50.0, resident=True)
    assert charged.result.telemetry["charged_wait_us"] == 50.0
    assert "charged_wait_us" not in talk(resident=True).result.telemetry


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (ConversationTask([], 4), "no conversation"),
        (ConversationTask([[]], 4), "a turn is empty"),
        (ConversationTask([[[1], []]], 4), "a turn is empty"),
        (ConversationTask([[[512]]], 4), "token 512 is outside the vocabulary of 512"),
        (ConversationTask([[[1]]], 0), "at least 1 and 0"),
    ],
)
def test_impossible_conversations_are_refused(task: ConversationTask, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run_conversations(agreeing(), parse({}), task)
