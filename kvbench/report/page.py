"""report.html: one file without a network, built from a summary by the template beside it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.records import CellSummary, Comparison, Summary, Verdict
from kvbench.records.capture import Capture
from kvbench.report import charts, repeat, runs, words
from kvbench.report.breakdown import PARTS, breakdowns, stacked
from kvbench.report.ceilings import sentences
from kvbench.report.differences import common, differing, flatten, program_of, settings_of
from kvbench.report.svg import Scale
from kvbench.report.timeline import draw

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent
DENSE_RUNS = 2000
"""From so many runs on, a cell's pictures and its table of runs take their dense form."""


@dataclass(frozen=True)
class Picture:
    """An SVG for the page; ``svg`` must come from ``kvbench.report.svg``, which escapes."""

    title: str
    svg: str


def render_html(summary: Summary, captures: Sequence[Capture] = ()) -> str:
    """The whole page. ``captures``: of the experiment's arms, if it was profiled."""
    from markupsafe import Markup

    css, script = _asset("report.css"), _asset("report.js")
    compared = [c for cell in summary.cells for c in cell.comparisons]
    arms = _arm_numbers(summary)
    scale = charts.gain_scale(compared, summary.delta)
    dense = sum(len(cell.runs) for cell in summary.cells) >= DENSE_RUNS
    content = {
        "summary": summary,
        "words": words,
        "css": Markup(css),
        "script": Markup(script),
        "css_hash": _csp_hash(css),
        "script_hash": _csp_hash(script),
        "tone": _tone(compared),
        "arms": arms,
        "rows": _rows(summary, scale),
        "gain_axis": Markup(charts.gain_axis(scale)),
        "along": [Picture(p.title, Markup(p.svg)) for p in _along(summary, arms)],
        "dense": dense,
        "cells": [_cell(cell, summary, arms, dense) for cell in summary.cells],
        "timeline": Markup(draw(captures)),
        "captured": ", ".join(capture.arm for capture in captures),
        "breakdowns": breakdowns(captures),
        "parts": PARTS,
        "stacked": Markup(stacked(breakdowns(captures))),
        "environment": list(flatten(summary.environment).items()),
        "warnings": _warnings(summary),
        "steps": repeat.commands(summary),
        "stored_at": repeat.stored_at(summary),
        "verdicts": [v for v in Verdict if any(c.verdict is v for c in compared)],
    }
    return _environment().get_template("report.html.j2").render(content)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: words.visible(value) if type(value) is str else value,
    )
    environment.filters["ago"] = words.duration
    return environment


@cache
def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8").strip()


def _csp_hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _tone(compared: Sequence[Comparison]) -> str:
    verdicts = {comparison.verdict for comparison in compared}
    return verdicts.pop().lower() if len(verdicts) == 1 else "mixed"


def _arm_numbers(summary: Summary) -> dict[str, int]:
    """Arm names in order of appearance, numbered: an arm has one colour and shape everywhere."""
    names = dict.fromkeys(arm.name for cell in summary.cells for arm in cell.arms)
    return {name: number for number, name in enumerate(names)}


def _rows(summary: Summary, scale: Scale) -> list[dict[str, Any]]:
    """One row a comparison, for the table of gains."""
    return [
        _row(number, cell, comparison, charts.gain_bar(comparison, scale, summary.delta))
        for number, cell in enumerate(summary.cells, 1)
        for comparison in cell.comparisons
    ]


def _row(number: int, cell: CellSummary, comparison: Comparison, bar: str) -> dict[str, Any]:
    from markupsafe import Markup

    arms = {arm.name: arm for arm in cell.arms}
    return {
        "number": number,
        "cell": cell,
        "comparison": comparison,
        "arm": arms.get(comparison.arm),
        "baseline": arms.get(comparison.baseline),
        "bar": Markup(bar),
    }


def _along(summary: Summary, arms: dict[str, int]) -> list[Picture]:
    axis = charts.numeric_axis(summary.cells)
    if axis is None:
        return []
    groups: dict[tuple[tuple[str, str], ...], list[CellSummary]] = {}
    for cell in summary.cells:
        rest = tuple((k, words.visible(v)) for k, v in cell.axes.items() if k != axis)
        groups.setdefault(rest, []).append(cell)
    pictures = []
    for rest, cells in groups.items():
        where = ", ".join(f"{name} = {value}" for name, value in rest)
        title = f"Gain along {axis}" + (f" at {where}" if where else "")
        pictures.append(
            Picture(title, charts.gain_along(axis, cells, arms, title, summary.baseline))
        )
    return [picture for picture in pictures if picture.svg]


def _cell(cell: CellSummary, summary: Summary, arms: dict[str, int], dense: bool) -> dict[str, Any]:
    from markupsafe import Markup

    settings = [settings_of(arm) for arm in cell.arms]
    programs = [program_of(arm) for arm in cell.arms]
    facts = [
        {
            "bytes moved": {kind: words.size(count) for kind, count in arm.bytes.items()},
            "memory": {kind: words.size(count) for kind, count in arm.memory.items()},
            "waits (made, elided, redundant)": dict(arm.waits),
            "counters": {name: words.number(value) for name, value in arm.counters.items()},
            "metrics": {name: words.number(value) for name, value in arm.metrics.items()},
            "digests": {kind: [d[:16] for d in seen] for kind, seen in arm.hashes.items()},
        }
        for arm in cell.arms
    ]
    return {
        "cell": cell,
        "runs_chart": Markup(runs.runs_in_order(cell, arms, dense=dense)),
        "runs_text": runs.runs_as_text(cell) if dense else "",
        "differ": differing(settings),
        "same": common(settings),
        "programs_differ": differing(programs),
        "programs_same": common(programs),
        "workload": list(flatten({**cell.workload, "link": cell.link}).items()),
        "facts": [(n, v) for n, v in _all_rows(facts)],
        "by_block": [
            Markup(charts.gain_by_block(c, summary.delta, dense=dense)) for c in cell.comparisons
        ],
        "blocks_text": [charts.gains_in_words(c) if dense else "" for c in cell.comparisons],
        "ceilings": sentences(cell, summary.baseline),
        "gate_report": list(flatten(cell.gate.report).items()),
    }


def _all_rows(columns: Sequence[dict[str, Any]]) -> list[tuple[str, tuple[str, ...]]]:
    flat = [flatten({k: v for k, v in column.items() if v}) for column in columns]
    names = dict.fromkeys(name for column in flat for name in column)
    return [(name, tuple(column.get(name, words.NONE) for column in flat)) for name in names]


def _warnings(summary: Summary) -> list[tuple[str, str]]:
    """(where, message) of every warning of the experiment."""
    found = [("experiment", warning.message) for warning in summary.warnings]
    for cell in summary.cells:
        found += [(cell.name, warning.message) for warning in cell.warnings]
        for comparison in cell.comparisons:
            where = f"{cell.name}, {comparison.arm}"
            found += [(where, warning.message) for warning in comparison.warnings]
    return found
