"""The reports of an experiment as files beside its journal."""

from __future__ import annotations

from pathlib import Path

from kvbench.records import Summary
from kvbench.records.capture import decode_capture
from kvbench.records.journal import write_durably
from kvbench.report.markdown import render_markdown
from kvbench.report.page import Picture, render_html
from kvbench.report.timeline import draw

PROFILE = "profile"
"""Folder of an experiment in which ``kvbench profile --run`` leaves its captures."""


def write_reports(summary: Summary, directory: Path) -> tuple[Path, Path]:
    """Write report.md and report.html into ``directory``; return their paths.

    The page shows a timeline if the experiment was profiled. A crash leaves either the old or the
    new file. Raises ``UsageError`` where nothing can be written, or a capture is damaged.
    """
    markdown, page = directory / "report.md", directory / "report.html"
    write_durably(markdown, render_markdown(summary).encode())
    write_durably(page, render_html(summary, _timelines(directory / PROFILE)).encode())
    return markdown, page


def _timelines(directory: Path) -> list[Picture]:
    paths = sorted(directory.glob("*.capture.json"))
    captures = [decode_capture(path.read_bytes(), str(path)) for path in paths]
    picture = draw(captures)
    if not picture:
        return []
    names = ", ".join(capture.arm for capture in captures)
    return [Picture(f"{names}: recorded in runs of their own, which were not timed", picture)]
