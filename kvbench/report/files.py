"""The reports of an experiment as files beside its journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvbench.records import Summary
from kvbench.records.journal import write_durably
from kvbench.report.markdown import render_markdown
from kvbench.report.page import Picture, render_html


def write_reports(
    summary: Summary, directory: Path, timelines: Sequence[Picture] = ()
) -> tuple[Path, Path]:
    """Write report.md and report.html into ``directory``; return their paths.

    A crash leaves either the old or the new file. Raises ``UsageError`` where nothing can be
    written.
    """
    markdown, page = directory / "report.md", directory / "report.html"
    write_durably(markdown, render_markdown(summary).encode())
    write_durably(page, render_html(summary, timelines).encode())
    return markdown, page
