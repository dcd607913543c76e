"""Two tokens of each arm on one scale of time, the baseline above: the overlap at a glance."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.records.capture import ApiCall, Capture, Work, tokens
from kvbench.report.svg import Scale, Svg, ticks
from kvbench.report.words import number, size

SHOWN_TOKENS = 2
MAX_QUEUES = 4
STYLE = """
svg { background: #fff; } text { font: 12px system-ui, sans-serif; fill: #1b1f24; }
.tick { font-size: 11px; fill: #57606a; } .grid { stroke: #d0d7de; } .separator { stroke: #57606a; }
.part0 { fill: #0969da; } .part1 { fill: #e16f24; } .part2 { fill: #2da44e; }
.part3 { fill: #a475f9; } .part5 { fill: #8c959f; } .shade { fill: #0000000d; }
"""
"""For the picture as a file of its own; in the page the style sheet colours it."""

_KINDS = {
    "kernel": ("part0", "kernels"),
    "to device": ("part1", "copies to the device"),
    "other copy": ("part2", "other copies"),
    "graph": ("part3", "graph launches traced as wholes"),
    "wait": ("part5", "host waits"),
}
_LEFT, _RIGHT, _LANE, _HEAD = 130.0, 1045.0, 24.0, 26.0


def draw(captures: Sequence[Capture], *, style: str = "") -> str:
    """The picture, or "" when no capture holds any work. ``style``: see ``STYLE``."""
    windows = [(capture, _window(capture)) for capture in captures if capture.work]
    if not windows:
        return ""
    longest = max(end - start for _, (start, end) in windows)
    lanes = [_lanes(capture, window) for capture, window in windows]
    height = sum(_HEAD + _LANE * len(rows) + 12 for rows in lanes) + 52
    names = " above ".join(capture.arm for capture, _ in windows)
    svg = Svg(1080, height, f"Timeline of {_what(windows[0][0])}: {names}", _describe(windows))
    x = Scale(0, longest, _LEFT, _RIGHT)
    for tick in ticks(0, longest / 1e6, 8):
        svg.line((x(tick * 1e6), 8), (x(tick * 1e6), height - 44), "grid")
        svg.text((x(tick * 1e6), height - 30), f"{number(tick, 3)} ms", "tick", "middle")
    top = 8.0
    for (capture, window), rows in zip(windows, lanes, strict=True):
        top = _arm(svg, capture, window, rows, (top, x)) + 12
    _legend(svg, height - 6)
    return svg.render(style)


def _window(capture: Capture) -> tuple[int, int]:
    """From the start of a token in the middle over the next one; everything if none is marked."""
    marked = tokens(capture)
    if not marked:
        return capture.span()
    first = max(0, min(len(marked) // 2, len(marked) - SHOWN_TOKENS))
    shown = marked[first : first + SHOWN_TOKENS]
    return shown[0].start, shown[-1].end


def _what(capture: Capture) -> str:
    marked = len(tokens(capture))
    return f"{min(SHOWN_TOKENS, marked)} tokens" if marked else "the whole capture"


def _describe(windows: Sequence[tuple[Capture, tuple[int, int]]]) -> str:
    lengths = (f"{c.arm} takes {number((end - start) / 1e6)} ms" for c, (start, end) in windows)
    return "; ".join(lengths) + "."


def _lanes(capture: Capture, window: tuple[int, int]) -> list[tuple[str, list[Work | ApiCall]]]:
    """Queues in which something ran, compute first, and the host's waits.

    A launched graph spreads its nodes over many streams: then a lane is a kind of work instead.
    """
    shown = [w for w in capture.work if w.end > window[0] and w.start < window[1]]
    by_queue = len({work.queue for work in shown}) <= MAX_QUEUES
    lanes: dict[str, list[Work | ApiCall]] = {}
    for work in shown:
        name = work.queue if by_queue else "copies" if work.kind == "copy" else "kernels"
        lanes.setdefault(name, []).append(work)
    computing = {w.queue for w in shown if w.kind in ("kernel", "graph")} | {"kernels"}
    rows = sorted(lanes.items(), key=lambda lane: (lane[0] not in computing, lane[0]))
    waits: list[Work | ApiCall] = [
        call
        for call in capture.api
        if "Synchronize" in call.name and call.end > window[0] and call.start < window[1]
        and call.end > call.start
    ]  # fmt: skip
    return [*rows, ("host waits", waits)] if waits else rows


def _arm(
    svg: Svg,
    capture: Capture,
    window: tuple[int, int],
    rows: Sequence[tuple[str, list[Work | ApiCall]]],
    at: tuple[float, Scale],
) -> float:
    top, x = at
    start, end = window
    length = number((end - start) / 1e6)
    svg.text((_LEFT, top + 14), f"{capture.arm}: {_what(capture)} in {length} ms", "label")
    top += _HEAD
    for token in tokens(capture):
        if start <= token.start <= end:
            place = x(token.start - start)
            svg.line((place, top - 4), (place, top + _LANE * len(rows)), "separator")
    for name, items in rows:
        svg.text((_LEFT - 8, top + 15), name.split("/")[-1][:18], "tick", "end")
        svg.rect((_LEFT, top + 1), x(end - start) - _LEFT, _LANE - 4, "shade")
        for item in items:
            left, right = (x(min(max(t, start), end) - start) for t in (item.start, item.end))
            kind = _KINDS[_kind(item)][0]
            svg.rect((left, top + 1), max(right - left, 0.4), _LANE - 4, kind, _tip(item))
        top += _LANE
    return top


def _kind(item: Work | ApiCall) -> str:
    if isinstance(item, ApiCall):
        return "wait"
    if item.kind == "copy":
        return "to device" if item.direction == "host_to_device" else "other copy"
    return "graph" if item.kind == "graph" else "kernel"


def _tip(item: Work | ApiCall) -> str:
    length = f"{number((item.end - item.start) / 1e6)} ms"
    if isinstance(item, ApiCall):
        return f"{item.name} {item.site}: {length}"
    moved = f", {size(item.nbytes)}" if item.kind == "copy" else ""
    slot = f", slot {item.slot}" if item.slot >= 0 else ""
    return f"{item.label}: {length}{moved}{slot}"


def _legend(svg: Svg, baseline: float) -> None:
    x = _LEFT
    for kind, says in _KINDS.values():
        if any(f'class="{kind}"' in part for part in svg.parts):
            svg.rect((x, baseline - 10), 10, 10, kind)
            svg.text((x + 15, baseline), says, "tick")
            x += 34 + 7 * len(says)
