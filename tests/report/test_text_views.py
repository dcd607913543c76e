"""Terminal tables in 80 columns, report.md fit for a pull request, text from outside is inert."""

from __future__ import annotations

import io
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from kvbench.analysis.ceiling import ceiling
from kvbench.records import Comparison, Verdict
from kvbench.report.ceilings import sentences
from kvbench.report.markdown import code, plain, render_markdown
from kvbench.report.page import render_html
from kvbench.report.progress import Progress
from kvbench.report.terminal import console, print_summary
from kvbench.report.words import (
    duration,
    headline,
    interval,
    number,
    percent,
    sentence,
    size,
    visible,
)
from tests.report import samples


def drawn(summary: samples.Summary, **options: object) -> str:
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=80, **options))  # type: ignore[arg-type]
    return out.getvalue()


def test_terminal_shows_verdict_passes_gain_and_interval_within_80_columns() -> None:
    text = drawn(samples.summary())
    assert "pipelined is faster than ordered: +57.3%" in text
    for figure in ("20.00", "19.98", "20.02", "31.46", "+55.7% to +58.9%", "▲ FASTER"):
        assert figure in text
    assert "LINK SLOWED" in text.splitlines()[0]
    assert max(cell_len(line.rstrip()) for line in text.splitlines()) <= 80


def test_every_view_says_how_near_the_ceiling_an_arm_came() -> None:
    """A step of 50 ms in order, of which 22.5 MiB at 1.2 GB/s take 19.66: at best 30.34 ms."""
    says = "pipelined reaches 95.4% of its ceiling: a step takes 31.79 ms"
    summary = samples.summary()
    flat = " ".join(drawn(summary).split())
    for text in (flat, render_markdown(summary), render_html(summary)):
        assert says in text
    assert "19.66 ms, the rest alone 30.34 ms" in flat
    assert "A step moves 22.50 MiB over the link (at 1.200 GB/s 19.66 ms)." in flat


def test_the_rates_that_the_baseline_measured_stand_in_for_a_link_that_was_not_slowed() -> None:
    cell = samples.cell()
    rates = {"weight_mib_per_step": 77.5, "link_limit_gb_s": 1.2, "memory_limit_gb_s": 10.0}
    arms = tuple(msgspec.structs.replace(a, metrics=a.metrics | rates) for a in cell.arms)
    found = sentences(msgspec.structs.replace(cell, link={}, arms=arms), "ordered")
    assert found["ordered"] == (
        "A step moves 22.50 MiB over the link (at 1.200 GB/s 19.66 ms) and reads 100.0 MiB of"
        " device memory, weights and windows (at 10.00 GB/s 10.49 ms)."
    )
    assert "95.4% of its ceiling" in found["pipelined"]


def test_there_is_no_ceiling_where_the_link_or_the_order_is_unknown() -> None:
    cell = samples.cell()
    unlinked = msgspec.structs.replace(cell, link={})
    swapped = msgspec.structs.replace(cell, arms=cell.arms[::-1])
    assert ceiling(cell, "ordered") is not None
    assert ceiling(swapped, "pipelined") is None
    assert ceiling(unlinked, "ordered") is None
    assert ceiling(cell, "nobody") is None


def test_terminal_of_many_cells_keeps_to_80_columns() -> None:
    long = "workload.prompt_tokens=131072,settings.kv_type=q8_0,arms.pipelined.depth=4"
    text = drawn(samples.summary(samples.cell(long, 1.1), samples.cell("b", 0.5, Verdict.SLOWER)))
    assert "2 comparisons: 1 FASTER, 1 SLOWER; from -50.0% to +10.0%." in text
    assert max(cell_len(line.rstrip()) for line in text.splitlines()) <= 80


@pytest.mark.parametrize("speed", [99_999.0, 123_456.0, 999_999.0, 1_234_567.0, 98_765_432.0])
@pytest.mark.parametrize("ratio", [0.001, 1.1, 13.5, 987.0])
def test_no_figure_is_broken_at_80_columns(speed: float, ratio: float) -> None:
    arms = [samples.arm("base", speed), samples.arm("new", speed * ratio)]
    told = samples.comparison("new", ratio, Verdict.FASTER)
    cell = msgspec.structs.replace(samples.cell("fast", 1.1), arms=tuple(arms), comparisons=(told,))
    lines = drawn(samples.summary(cell)).splitlines()
    assert max(map(len, lines)) <= 80
    table = next(number for number, line in enumerate(lines) if line.startswith("arm "))
    assert [line.split()[0] for line in lines[table + 1 : table + 3]] == ["base", "new"]
    assert interval(told.ci95) in lines[table + 2] and "FASTER" in lines[table + 2]


def test_no_colour_without_a_terminal_or_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in drawn(samples.summary())
    coloured = drawn(samples.summary(), force_terminal=True, color_system="standard")
    assert re.search(r"\x1b\[[\d;]*3[1-6]", coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    plain_text = drawn(samples.summary(), force_terminal=True, color_system="standard")
    assert not re.search(r"\x1b\[[\d;]*3[1-6]", plain_text)


def test_console_is_80_columns_when_piped() -> None:
    assert console().width == 80


def test_hostile_text_reaches_no_terminal_control() -> None:
    text = drawn(samples.hostile())
    assert not {c for c in text if ord(c) < 0x20} - {"\n"}
    assert "\u202e" not in text


def outside_code(markdown: str) -> str:
    markdown = re.sub(r"^(`{3,})sh$.*?^\1$", "CODE", markdown, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "CODE", markdown)


def test_hostile_text_is_inert_in_markdown() -> None:
    prose = outside_code(render_markdown(samples.hostile()))
    tags = set(re.findall(r"(?<!\\)<[^>]*>", prose))
    assert tags <= {"<details>", "<summary>", "</summary>", "</details>"}
    assert not re.search(r"@\w", prose)
    assert "https://" not in prose
    assert not re.search(r"(?<!\\)\[", prose)


def test_markdown_tables_keep_their_shape() -> None:
    for text in (render_markdown(samples.hostile()), render_markdown(samples.summary())):
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert rows
        for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE):
            counts = {len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}
            assert len(counts) == 1, block


def test_markdown_lists_the_runs_of_all_cells_in_the_order_they_were_made() -> None:
    two = samples.cell("a"), samples.cell("b")
    mixed = [
        msgspec.structs.replace(
            cell,
            runs=tuple(msgspec.structs.replace(r, order=2 * r.order + at) for r in cell.runs),
        )
        for at, cell in enumerate(two)
    ]
    text = render_markdown(samples.summary(*mixed))
    places = re.findall(r"^\| (\d+) \| `[ab]` \|", text, flags=re.MULTILINE)
    assert [int(place) for place in places] == list(range(1, len(places) + 1)) and places


@given(st.text(st.characters(exclude_categories=[])))
def test_code_span_gives_the_text_back(text: str) -> None:
    span = code(text)
    if not text:
        return
    fence = re.match(r"`+", span)
    assert fence is not None and span.endswith(fence[0])
    inside = span[len(fence[0]) : -len(fence[0])]
    assert not re.search(rf"(?<!`)`{{{len(fence[0])}}}(?!`)", inside)
    assert not re.search(r"(?<!\\)\|", inside)


@given(st.text(st.characters(exclude_categories=[])))
def test_visible_text_is_one_line_without_controls(text: str) -> None:
    shown = visible(text)
    assert shown.splitlines() in ([], [shown])
    assert not any(ord(c) < 0x20 or c in "\u202a\u202e\u2066\u2069\x7f\x9b" for c in shown)
    assert not re.search(r"(?<!\\)[<|`]", plain(text))


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (Verdict.FASTER, "b is faster than a: +10.0% (95% interval +9.00% to +11.0%)."),
        (Verdict.SLOWER, "b is slower than a: +10.0%"),
        (Verdict.EQUIVALENT, "b and a are equally fast within ±1.0%: +10.0% (90% interval "),
        (Verdict.INCONCLUSIVE, "b against a is not decided: +10.0%"),
        (Verdict.INVALID, "b against a: no verdict."),
    ],
)
def test_every_verdict_is_a_sentence(verdict: Verdict, says: str) -> None:
    comparison = Comparison(
        "b", "a", verdict, "why", ratio=1.1, ci95=(1.09, 1.11), ci90=(1.092, 1.108)
    )
    assert sentence(comparison, 0.01).startswith(says)


def test_an_experiment_without_results_says_so() -> None:
    empty = samples.summary(cells=())
    assert headline(empty) == "No comparison was finished."
    assert "No comparison was finished" in drawn(empty)
    assert "No comparison was finished" in render_markdown(empty)


def test_figures_in_words() -> None:
    assert [percent(r) for r in (1.573, 0.9, 1.0034, 1.0, None)] == [
        "+57.3%", "-10.0%", "+0.34%", "+0.00%", "–",
    ]  # fmt: skip
    assert [number(v) for v in (31.5432, 0.5, 1234.5, 0.0, None, 3.2e-7)] == [
        "31.54", "0.5000", "1,234", "0", "–", "3.2e-07",
    ]  # fmt: skip
    assert [size(v) for v in (12, 4096, 27 << 20, 3 << 30, 1 << 45)] == [
        "12 B", "4.000 KiB", "27.00 MiB", "3.000 GiB", "32.00 TiB",
    ]  # fmt: skip
    assert [duration(v) for v in (7.6, 200, 7500)] == ["8 s", "3 min 20 s", "2 h 05 min"]


def test_progress_without_a_terminal_is_one_line_a_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Progress("smoke", 2) as progress:
        progress.doing("block 1")
        progress.step("ordered 20.1 tok/s", left_s=65)
        progress.note("a run was\x1b[2J repeated")
        progress.step("pipelined 31.0 tok/s")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "[1/2] ordered 20.1 tok/s, 1 min 05 s left",
        "a run was␛[2J repeated",
        "[2/2] pipelined 31.0 tok/s",
    ]


def test_progress_counts_steps_that_come_again(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("smoke", 2) as progress:
        progress.step("one")
        progress.step("another", left_s=0)
        progress.more(2)
        progress.step("one", left_s=0)
        progress.step("another", left_s=0)
    said = [line.split()[0] for line in capsys.readouterr().err.splitlines()]
    assert said == ["[1/2]", "[2/2]", "[3/4]", "[4/4]"]


def test_tables_in_a_list_are_rows_like_any_other() -> None:
    """A machine's GPUs are a list of tables."""
    gpus = [{"name": "NVIDIA H200", "ecc": 1, "mig": None}, {"name": "other"}]
    shown = samples.summary(samples.cell("main"), environment={"machine": {"gpus": gpus}})
    for text in (render_markdown(shown), render_html(shown)):
        assert "machine.gpus.0.name" in text and "NVIDIA H200" in text
        assert "machine.gpus.1.name" in text
        assert "{'name'" not in text and "{&#39;name" not in text
