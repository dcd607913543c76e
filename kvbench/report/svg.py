"""Inline SVG, written by hand: shapes with classes, colours left to the page's style sheet.

Every picture is one ``role="img"`` element with a name and a description for screen readers;
what it shows also stands in a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from kvbench.report.words import visible

Point = tuple[float, float]


@dataclass
class Svg:
    """A picture of ``width`` x ``height`` user units that scales to the width it is given."""

    width: float
    height: float
    title: str
    description: str = ""
    parts: list[str] = field(default_factory=list)

    def line(self, a: Point, b: Point, kind: str) -> None:
        """A straight line."""
        ends = f'x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}"'
        self.parts.append(f'<line class="{kind}" {ends}/>')

    def lines(self, ends: Sequence[tuple[Point, Point]], kind: str) -> None:
        """Straight lines as one element."""
        drawn = "".join(f"M{a[0]:.1f} {a[1]:.1f}L{b[0]:.1f} {b[1]:.1f}" for a, b in ends)
        self.parts.append(f'<path class="{kind}" d="{drawn}"/>')

    def rect(self, corner: Point, width: float, height: float, kind: str, tip: str = "") -> None:
        """A rectangle from its upper left corner; ``tip`` shows when it is pointed at."""
        self.parts.append(
            f'<rect class="{kind}" x="{corner[0]:.1f}" y="{corner[1]:.1f}" '
            f'width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"{_with_tip("rect", tip)}'
        )

    def path(self, points: Sequence[Point], kind: str, *, closed: bool = False) -> None:
        """A polyline, or a polygon if ``closed``."""
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<{"polygon" if closed else "polyline"} class="{kind}" points="{drawn}"/>'
        )

    def text(self, at: Point, content: str, kind: str = "label", anchor: str = "start") -> None:
        """Text whose baseline starts, ends or is centred (``anchor``) at ``at``."""
        self.parts.append(
            f'<text class="{kind}" x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}">'
            f"{text(content)}</text>"
        )

    def mark(self, at: Point, shape: int, kind: str, tip: str = "", size: float = 4) -> None:
        """A data point; ``shape`` (circle, square, diamond, triangle) tells arms apart."""
        x, y = at
        name, geometry = _SHAPES[shape % len(_SHAPES)]
        self.parts.append(f'<{name} class="{kind}" {geometry(x, y, size)}{_with_tip(name, tip)}')

    def dots(self, points: Sequence[Point], shape: int, kind: str) -> None:
        """Data points of one ``shape`` as one element, without tips."""
        number = shape % len(_DOTS)
        drawn = "".join(f"M{x:.1f} {y:.1f}{_DOTS[number]}" for x, y in points)
        self.parts.append(f'<path class="dots{number} {kind}" d="{drawn}"/>')

    def render(self, style: str = "") -> str:
        """The element, safe to be put into HTML as it is. ``style``: for a file of its own."""
        sheet = f"<style>{style}</style>" if style else ""
        about = f"<desc>{text(self.description)}</desc>" if self.description else ""
        return (
            f'<svg role="img" aria-label="{text(self.title)}" viewBox="0 0 {self.width:g} '
            f'{self.height:g}" width="{self.width:g}" height="{self.height:g}" '
            f'xmlns="http://www.w3.org/2000/svg">{about}{sheet}{"".join(self.parts)}</svg>'
        )


def text(content: object) -> str:
    """Text for HTML or SVG: control characters made visible, markup escaped."""
    return escape(visible(content), quote=True)


def _with_tip(name: str, tip: str) -> str:
    return f"><title>{text(tip)}</title></{name}>" if tip else "/>"


def _circle(x: float, y: float, size: float) -> str:
    return f'cx="{x:.1f}" cy="{y:.1f}" r="{size:g}"'


def _polygon(x: float, y: float, corners: Sequence[Point], size: float) -> str:
    return (
        'points="'
        + " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in corners)
        + '"'
    )


_SHAPES = (
    ("circle", _circle),
    ("polygon", lambda x, y, s: _polygon(x, y, ((-1, -1), (1, -1), (1, 1), (-1, 1)), s * 0.9)),
    ("polygon", lambda x, y, s: _polygon(x, y, ((0, -1), (1, 0), (0, 1), (-1, 0)), s * 1.25)),
    ("polygon", lambda x, y, s: _polygon(x, y, ((0, -1), (1, 0.8), (-1, 0.8)), s * 1.15)),
)
_DOTS = ("h0", "h0", "m0-5 5 5-5 5-5-5z", "m0-4.6 4.6 8.3h-9.2z")
"""The same shapes in one path: what follows a point. The first two are caps of empty lines."""


@dataclass(frozen=True)
class Scale:
    """A map from data to user units, linear or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            span = math.log(self.high / self.low) or 1.0
            share = math.log(max(value, 1e-300) / self.low) / span
        else:
            share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + share * (self.end - self.start)


def padded(values: Sequence[float], share: float = 0.08) -> tuple[float, float]:
    """The range of ``values`` widened on both sides; never empty."""
    low, high = min(values), max(values)
    margin = (high - low) * share or abs(high) * 0.05 or 1.0
    return low - margin, high + margin


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers in [low, high]."""
    raw = (high - low) / max(count, 1)
    if raw <= 0 or not math.isfinite(raw):
        return [low]
    unit = 10 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]
