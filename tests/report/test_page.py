"""Issue: report.html is self-contained, complete, escaped, and works in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from kvbench.errors import UsageError
from kvbench.records import Summary, Verdict
from kvbench.records.capture import Capture, NamedRange, Work, encode_capture
from kvbench.report.breakdown import breakdowns
from kvbench.report.files import write_reports
from kvbench.report.page import render_html
from kvbench.report.svg import ticks
from tests.report import chromium, samples

needs_browser = pytest.mark.skipif(not chromium.BINARY, reason="no Chromium on this machine")


def capture(arm: str, kernels: int, copies: int) -> Capture:
    """Two tokens of 10 ms: kernels from the start, copies up to the end; both lengths in ms."""
    ms = 1_000_000
    work = [
        part
        for start in (0, 10 * ms)
        for part in (
            Work("kernel", "cpu0/compute", "attend", start, start + kernels * ms),
            Work("copy", "cpu0/transfer", "early", start + (10 - copies) * ms, start + 10 * ms),
        )
    ]
    ranges = tuple(NamedRange("token", start, start + 10 * ms) for start in (0, 10 * ms))
    return Capture(
        v=1, arm=arm, source="oplog", tool="t", tokens=2, work=tuple(work), ranges=ranges
    )


def sweep() -> Summary:
    gains = (1.0, 1.17, 1.6, 1.19, 0.9)
    cells = [
        samples.cell(
            f"kv={kv},prompt_tokens={2**step}",
            gain,
            Verdict.FASTER if gain > 1.01 else Verdict.SLOWER,
            **{"settings.kv_type": kv, "workload.prompt_tokens": 2**step},
        )
        for kv in ("f16", "q8_0")
        for step, gain in zip(range(10, 15), gains, strict=True)
    ]
    return samples.summary(*cells)


class Elements(HTMLParser):
    """Names and attributes of every element of a page, and whether tags are balanced."""

    VOID = frozenset({"meta", "link", "input", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_answers_in_the_order_a_doubter_asks() -> None:
    page = render_html(samples.summary(samples.cell()))
    order = re.findall(r'<section id="(\w+)"', page)
    assert order == [
        "verdict", "exactness", "gain", "cells", "timeline", "environment", "warnings", "repeat",
    ]  # fmt: skip
    assert "FASTER: pipelined is faster than ordered: +57.3%" in page
    assert "kvbench ab smoke" in page
    assert "Example CPU" in page
    assert "pipelined-commit" in page.split('id="environment"')[1].split("<details>")[0]
    assert page.count('class="dot arm0') >= 14  # every run of the first arm, voided ones included
    assert "kvbench ab --resume" not in page


def test_an_unfinished_experiment_says_how_to_go_on() -> None:
    page = render_html(samples.summary(finished=None))
    assert "not complete" in page and "kvbench ab --resume results/" in page


@pytest.mark.parametrize("said", [["--out", "my/place/"], ["--out=my/place"]])
def test_the_commands_find_the_experiment_where_it_was_stored(said: list[str]) -> None:
    summary = samples.summary(command=("kvbench", "ab", "smoke", *said))
    page = render_html(summary)
    assert f"kvbench show my/place/{summary.run}" in page
    assert f"kvbench profile --run my/place/{summary.run}" in page


def test_no_text_from_outside_becomes_markup() -> None:
    benign, hostile = (
        Elements(render_html(s, [capture(s.suite, 4, 7)])).found
        for s in (samples.summary(samples.cell(), samples.cell("b")), samples.hostile())
    )
    allowed = {tag for tag, _ in benign} | {"text"}
    assert {tag for tag, _ in hostile} <= allowed
    for tag, attributes in hostile:
        assert tag != "img"
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert (attributes.get("href") or "#").startswith(("#", "data:,"))
        assert "src" not in attributes
    assert sum(tag == "script" for tag, _ in hostile) == 1


def test_pictures_are_well_formed_and_named() -> None:
    page = render_html(sweep())
    pictures = re.findall(r"<svg role=.*?</svg>", page, flags=re.DOTALL)
    assert len(pictures) > 30
    for picture in pictures:
        assert ElementTree.fromstring(picture).get("aria-label")
        assert "nan" not in picture and "inf" not in picture


def test_a_large_sweep_is_drawn_densely_and_keeps_every_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One element an arm in a picture, a line a run in the table; remarks keep their marks."""
    sparse = render_html(sweep())
    monkeypatch.setattr("kvbench.report.page.DENSE_RUNS", 1)
    dense = render_html(sweep())
    Elements(dense)
    assert len(dense) < len(sparse)
    tables = re.findall(r"<pre>(.*?)</pre>", dense, flags=re.DOTALL)
    for cell, table in zip(sweep().cells, tables, strict=True):
        rows = [line.split() for line in table.splitlines()[1:]]
        assert [(int(r[0]), int(r[1]), int(r[2]), int(r[3]), r[4]) for r in rows] == [
            (run.order + 1, run.block + 1, run.attempt + 1, run.pass_ + 1, run.arm)
            for run in cell.runs
        ]
        assert [float(r[5]) for r in rows] == [float(f"{run.tok_s:.6g}") for run in cell.runs]
        assert table.count("thermal throttling") == 4
        assert "outlier" in " ".join(rows[5])
    (chart,) = re.findall(r'<svg role="img" aria-label="Tokens/s of[^"]*".*?</svg>', dense)[:1]
    remarks = sum(bool(r.violations) or r.outlier for r in sweep().cells[0].runs)
    assert chart.count("<title>") == remarks
    assert chart.count("h0") == len(sweep().cells[0].runs) - remarks
    assert "By block: 1: " in dense and "By block" not in sparse


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.7, 60.2), (19.9, 20.1), (5.0, 5.0)])
def test_ticks_lie_inside_and_are_few(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 7
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in found)


def test_files_are_written_beside_the_journal(tmp_path: Path) -> None:
    markdown, page = write_reports(samples.summary(), tmp_path)
    assert markdown.read_text().startswith("### kvbench: Ordered against pipelined")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "report.md"]


def test_a_profiled_experiment_has_its_timeline_in_the_page(tmp_path: Path) -> None:
    assert "None was recorded" in write_reports(samples.summary(), tmp_path)[1].read_text()
    (tmp_path / "profile").mkdir()
    for number, (arm, kernels, copies) in enumerate((("ordered", 4, 6), ("pipelined", 7, 5))):
        data = encode_capture(capture(arm, kernels, copies))
        (tmp_path / f"profile/{number}-{arm}.capture.json").write_bytes(data)
    page = write_reports(samples.summary(), tmp_path)[1].read_text()
    assert "Timeline of 2 tokens: ordered above pipelined" in page
    assert "None was recorded" not in page
    (tmp_path / "profile/2-x.capture.json").write_bytes(b"{")
    with pytest.raises(UsageError, match=r"2-x\.capture\.json: not a capture"):
        write_reports(samples.summary(), tmp_path)


def test_a_steps_parts_add_up() -> None:
    """4 + 6 ms apart, 7 + 5 ms with 2 ms at once, 4 + 3 ms with 3 ms of neither."""
    rows = breakdowns([capture("a", 4, 6), capture("b", 7, 5), capture("c", 4, 3)])
    assert [row.parts for row in rows] == [
        (4.0, 0.0, 6.0, 0.0), (5.0, 2.0, 3.0, 0.0), (4.0, 0.0, 3.0, 3.0),
    ]  # fmt: skip
    assert {row.total for row in rows} == {10.0}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    with chromium.Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(params=[1280, 390], ids=["wide", "phone"])
def page(request: pytest.FixtureRequest, browser: chromium.Browser) -> Iterator[chromium.Page]:
    opened = browser.page(request.param)
    yield opened
    opened.close()


def load(page: chromium.Page, summary: Summary, directory: Path) -> None:
    (directory / "profile").mkdir(exist_ok=True)
    data = encode_capture(capture(summary.suite, 4, 7))
    (directory / "profile/0.capture.json").write_bytes(data)
    page.open(write_reports(summary, directory)[1])


@needs_browser
@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
@pytest.mark.parametrize("make", [sweep, samples.hostile, samples.summary])
def test_browser_finds_nothing_to_complain_about(
    page: chromium.Page, tmp_path: Path, make: object, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every control is clicked; nothing is fetched, logged or thrown, nothing overflows."""
    if dense:
        monkeypatch.setattr("kvbench.report.page.DENSE_RUNS", 1)
    load(page, make(), tmp_path)  # type: ignore[operator]
    clicked = page.run(
        "(() => { const all = [...document.querySelectorAll('button, summary, a, select, input')];"
        " for (const control of all) { control.focus(); control.click(); } return all.length; })()"
    )
    assert clicked > 5
    assert page.run("document.scrollingElement.scrollWidth - innerWidth") <= 0
    assert page.run("document.images.length + (document.scripts.length - 1)") == 0
    assert page.complaints() == []
    assert [url for url in page.requests() if not url.startswith(("file:", "data:"))] == []


def wide() -> Summary:
    """Few runs and intervals from a half to a multiple: axes have much to show in little room."""
    arms = samples.arm("ordered", 468.4), samples.arm("pipelined", 123_456.0)
    cells = []
    for name, ends in (("main", (0.49, 3.45)), ("far", (2.0, 12.0))):
        told = samples.comparison("pipelined", 1.3, Verdict.INCONCLUSIVE)
        told = msgspec.structs.replace(told, ci95=ends)
        runs = samples.runs(arms, blocks=1)
        cell = samples.cell(name)
        cells.append(msgspec.structs.replace(cell, arms=arms, comparisons=(told,), runs=runs))
    return samples.summary(*cells)


@needs_browser
@pytest.mark.parametrize("make", [wide, samples.summary, sweep])
def test_axes_are_legible(page: chromium.Page, tmp_path: Path, make: object) -> None:
    """No label is cut or lies on another of its picture; bars stand below their axis."""
    load(page, make(), tmp_path)  # type: ignore[operator]
    page.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    faults = page.run(
        """(() => { const faults = [];
        for (const picture of document.querySelectorAll('svg')) {
          const frame = picture.getBoundingClientRect(), seen = [];
          for (const label of picture.querySelectorAll('text.tick')) {
            const box = label.getBoundingClientRect();
            if (!box.width) continue;
            if (box.left < frame.left - 1 || box.right > frame.right + 1)
              faults.push(['cut', label.textContent, picture.getAttribute('aria-label')]);
            for (const [other, text] of seen)
              if (Math.min(box.right, other.right) - Math.max(box.left, other.left) > 1 &&
                  Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top) > 4)
                faults.push(['overlaps', label.textContent, text]);
            seen.push([box, label.textContent]);
          } }
        return faults; })()"""
    )
    assert faults == []
    lefts = page.run(
        "[...document.querySelectorAll('#gains thead svg, #gains .bar svg')]"
        ".map(each => each.getBoundingClientRect()).filter(box => box.width)"
        ".map(box => Math.round(box.left))"
    )
    assert len(set(lefts)) == 1, "an axis and its bars begin at the same place"


@needs_browser
def test_controls_do_what_they_say(page: chromium.Page, tmp_path: Path) -> None:
    load(page, sweep(), tmp_path)
    visible = "[...document.querySelectorAll('#gains tbody tr')].filter(r => !r.hidden).length"
    type_in = "byId('find').value = '{}'; byId('find').dispatchEvent(new Event('input'))"
    page.run("window.byId = id => document.getElementById(id)")
    assert page.run(visible) == 10
    page.run(type_in.format("Q8_0"))
    assert page.run(visible) == 5
    assert page.run("byId('shown').textContent") == "5 of 10 shown"
    page.run("byId('only').value = 'SLOWER'; byId('only').dispatchEvent(new Event('change'))")
    assert page.run(visible) == 2
    page.run(type_in.format("nothing like it"))
    assert page.run(visible) == 0

    gains = "[...document.querySelectorAll('#gains tbody tr')].map(r => +r.cells[4].dataset.value)"
    sort = "document.querySelectorAll('#gains thead th')[4].querySelector('button').click()"
    for descending in (False, True):
        page.run(sort)
        assert page.run(gains) == sorted(page.run(gains), reverse=descending)

    assert page.run("document.querySelectorAll('details[open]').length") == 0
    page.run("document.getElementById('unfold').click()")
    assert page.run("document.querySelectorAll('details:not([open])').length") == 0
    page.run("document.getElementById('unfold').click()")
    assert page.run("document.querySelectorAll('details[open]').length") == 0
    page.run("document.querySelector('#gains tbody a').click()")
    assert page.run(
        "new Promise(d => setTimeout(() => d(document.querySelectorAll('details[open]').length)))"
    )

    colour = "getComputedStyle(document.body).backgroundColor"
    assert page.run(colour) == "rgb(255, 255, 255)"
    page.run("byId('theme').click(); byId('theme').click()")
    assert page.run("byId('theme').textContent") == "Colours: dark"
    assert page.run(colour) == "rgb(13, 17, 23)"


@needs_browser
def test_keyboard_alone_reaches_every_control(browser: chromium.Browser, tmp_path: Path) -> None:
    with closing(browser.page()) as page:
        load(page, samples.summary(), tmp_path)
        expected = page.run(
            "[...document.querySelectorAll('a, button, summary, input, select, [tabindex=\"0\"]')]"
            ".filter(e => e.checkVisibility({contentVisibilityAuto: true})).length"
        )
        page.run(
            "window.reached = new Set(); addEventListener('focusin', e => reached.add(e.target))"
        )
        for _ in range(expected + 2):
            page.press("Tab")
        assert page.run("reached.size") >= expected
        page.run("document.querySelector('details details summary').focus()")
        page.press("Enter")
        assert page.run("document.querySelector('details details').open")


@needs_browser
def test_screen_reader_finds_a_name_for_everything(
    browser: chromium.Browser, tmp_path: Path
) -> None:
    with closing(browser.page()) as page:
        load(page, sweep(), tmp_path)
        page.run("document.getElementById('unfold').click()")
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "link", "textbox", "searchbox", "combobox", "image", "img", "region"}
    seen = [node for node in nodes if not node["ignored"] and node["role"]["value"] in roles]
    assert len(seen) > 50
    assert [node for node in seen if not node.get("name", {}).get("value")] == []


@needs_browser
@pytest.mark.parametrize("dense", [False, True], ids=["sparse", "dense"])
def test_print_and_dark_mode_keep_everything_readable(
    browser: chromium.Browser, tmp_path: Path, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text against the page's background has a contrast of 4.5 or more in both schemes."""
    if dense:
        monkeypatch.setattr("kvbench.report.page.DENSE_RUNS", 1)
    contrast = """(() => {
      const light = c => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
        .map(x => x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4);
        return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
      const page = light(getComputedStyle(document.body).backgroundColor);
      const poor = [];
      const all = 'p, td, th, a, span, strong, h1, h2, code, pre, text';
      for (const e of document.querySelectorAll(all)) {
        const style = getComputedStyle(e);
        const ink = light(e instanceof SVGElement ? style.fill : style.color);
        const ratio = (Math.max(ink, page) + .05) / (Math.min(ink, page) + .05);
        if (ratio < 4.5) poor.push([e.tagName, e.className, ratio]);
      }
      return poor.map(String);
    })()"""
    for dark in (False, True):
        with closing(browser.page(dark=dark)) as page:
            load(page, sweep(), tmp_path)
            expected = "rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)"
            assert page.run("getComputedStyle(document.body).backgroundColor") == expected
            assert page.run(contrast) == []
            page.call("Emulation.setEmulatedMedia", media="print", features=[])
            assert page.run("getComputedStyle(document.querySelector('.tools')).display") == "none"
            assert page.run("document.querySelector('details table').checkVisibility()")
