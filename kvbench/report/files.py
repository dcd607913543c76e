"""The reports of an experiment as files beside its journal."""

from __future__ import annotations

from pathlib import Path

from kvbench.records import Summary
from kvbench.records.capture import Capture, decode_capture
from kvbench.records.journal import write_durably
from kvbench.report.markdown import render_markdown
from kvbench.report.page import render_html

PROFILE = "profile"
"""Folder of an experiment in which ``kvbench profile --run`` leaves its captures."""


def write_reports(summary: Summary, directory: Path) -> tuple[Path, Path]:
    """Write report.md and report.html into ``directory``; return their paths.

    The page shows a timeline if the experiment was profiled. A crash leaves either the old or the
    new file. Raises ``UsageError`` where nothing can be written, or a capture is damaged.
    """
    markdown, page = directory / "report.md", directory / "report.html"
    write_durably(markdown, render_markdown(summary).encode())
    write_durably(page, render_html(summary, _captures(directory / PROFILE)).encode())
    return markdown, page


def _captures(directory: Path) -> list[Capture]:
    paths = sorted(directory.glob("*.capture.json"))
    return [decode_capture(path.read_bytes(), str(path)) for path in paths]
