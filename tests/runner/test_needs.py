"""What an experiment is said to need: from a few rehearsals, for every cell."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.spec import Cell, Suite
from kvbench.spec.suite import ArmSpec, Workload
from runner.needs import estimate, to_rehearse
from runner.rehearsal import Rehearsed

ARMS = (ArmSpec(name="a", engine="reference"), ArmSpec(name="b", engine="reference"))
SUITE = Suite(
    schema=1, name="s", description="", baseline="a", model="m", arms=ARMS, blocks=2, gate="none"
)
RUNS = 2 * 2 * len(ARMS)


def cell(prompt: int, model: str = "m", sequences: int = 1, generate: int = 48) -> Cell:
    work = Workload(prompt_tokens=prompt, sequences=sequences, generate=generate, warmup=0)
    return Cell(f"{model} {prompt} {sequences} {generate}", {}, ARMS, work, model, None)


def rehearsed(of: Cell) -> Rehearsed:
    """A machine on which start, token and memory grow linearly with what is held."""
    work = of.workload
    held = (work.prompt_tokens + work.generate) * work.sequences
    decode = (1 + 0.01 * held) * work.generate * work.sequences
    nothing: Any = None
    return Rehearsed(5 + 0.1 * held + decode, decode, 100 + held, nothing)


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=6, unique=True))
def test_contexts_between_two_rehearsals_are_between_their_times(prompts: list[int]) -> None:
    """Also when the first cell is neither the shortest nor the longest."""
    cells = [cell(prompt) for prompt in prompts]
    chosen = to_rehearse(cells)
    assert {c.workload.prompt_tokens for c in chosen} == {min(prompts), max(prompts)}
    needs = estimate(SUITE, cells, {c.name: rehearsed(c) for c in chosen}, set())
    assert needs.runs == RUNS * len(cells)
    assert needs.seconds == pytest.approx(sum(rehearsed(c).wall_s for c in cells) * RUNS)
    assert needs.ram_mib == rehearsed(cell(max(prompts))).rss_mib


def test_each_model_and_no_setting_is_rehearsed_by_itself() -> None:
    small, large = (cell(512, "small"), cell(512, "large"))
    again = cell(512, "small")
    assert to_rehearse([small, again, large, cell(2048, "large")]) == [
        small,
        large,
        cell(2048, "large"),
    ]
    assert to_rehearse([small, again]) == [small]


def test_sequences_count_as_context() -> None:
    one, many = cell(512), cell(512, sequences=8)
    assert to_rehearse([one, many]) == [one, many]
