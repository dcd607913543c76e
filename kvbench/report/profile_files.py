"""A profile as files: captures, trace for Perfetto, timeline picture, tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kvbench.errors import UsageError
from kvbench.records.capture import Capture, encode_capture
from kvbench.records.journal import write_durably
from kvbench.report.profile_view import markdown, tables
from kvbench.report.timeline import STYLE, draw
from kvbench.report.trace import render_trace


def write_profile(captures: Sequence[Capture], directory: Path) -> list[Path]:
    """Write everything into ``directory``, which is made; return what was written."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory}: cannot be made: {error.strerror}") from error
    files = {
        "trace.json": render_trace(captures),
        "profile.md": markdown(tables(captures)).encode(),
        **{_name(c.arm, i): encode_capture(c) for i, c in enumerate(captures)},
    }
    picture = draw(captures, style=STYLE)
    if picture:
        files["timeline.svg"] = picture.encode()
    for name, data in files.items():
        write_durably(directory / name, data)
    return [directory / name for name in sorted(files)]


def _name(arm: str, number: int) -> str:
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", arm)[:60]
    return f"{number}-{safe}.capture.json"
