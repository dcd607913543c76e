"""Figures and verdicts in words, the same in every view.

Ratios are arm / baseline, shown as a signed change in percent.
"""

from __future__ import annotations

import unicodedata

from kvbench.records import Comparison, Summary, Verdict

NONE = "–"
_SYMBOLS = {Verdict.FASTER: "▲", Verdict.SLOWER: "▼", Verdict.EQUIVALENT: "="}


def visible(text: object) -> str:
    """``text`` on one line with control and direction-changing characters made visible.

    For every string that comes from outside (prompts, model output, server errors, file names):
    none may move a terminal's cursor or reorder a line.
    """
    content = str(text)
    if content.isprintable():
        return content
    return "".join(_visible_character(character) for character in content)


def _visible_character(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return f"<U+{code:04X}>"
    return character


def percent(ratio: float | None) -> str:
    """+57.3% for 1.573; two decimals below 10%."""
    if ratio is None:
        return NONE
    change = (ratio - 1) * 100
    return f"{change:+.1f}%" if abs(change) >= 9.95 else f"{change:+.2f}%"


def interval(bounds: tuple[float, float] | None) -> str:
    """Both ends of an interval of ratios."""
    return NONE if bounds is None else f"{percent(bounds[0])} to {percent(bounds[1])}"


def number(value: float | None, digits: int = 4) -> str:
    """``value`` with ``digits`` significant digits, without an exponent where that is readable."""
    if value is None:
        return NONE
    if value != value or abs(value) in (0, float("inf")):
        return f"{value:g}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if abs(value) < 1e-4 else f"{value:#.{digits}g}".rstrip(".")


def size(count: float) -> str:
    """Bytes in the largest binary unit that keeps the figure at 1 or more."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{number(count) if unit != 'B' else format(count, ',.0f')} {unit}"
        count /= 1024
    return f"{number(count)} TiB"


def duration(seconds: float) -> str:
    """8 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def symbol(verdict: Verdict) -> str:
    """One character that tells verdicts apart without colour."""
    return _SYMBOLS.get(verdict, "✗" if verdict is Verdict.INVALID else "?")


def sentence(comparison: Comparison, delta: float) -> str:
    """The verdict as a sentence of its own, with its figures."""
    arm, base = visible(comparison.arm), visible(comparison.baseline)
    gain = percent(comparison.ratio)
    interval95 = f"95% interval {interval(comparison.ci95)}"
    match comparison.verdict:
        case Verdict.INVALID:
            return f"{arm} against {base}: no verdict."
        case Verdict.EQUIVALENT:
            return (
                f"{arm} and {base} are equally fast within ±{delta:.1%}: {gain} "
                f"(90% interval {interval(comparison.ci90)})."
            )
        case Verdict.INCONCLUSIVE:
            return f"{arm} against {base} is not decided: {gain} ({interval95})."
    return f"{arm} is {comparison.verdict.lower()} than {base}: {gain} ({interval95})."


def headline(summary: Summary) -> str:
    """What the whole experiment says, in one line."""
    comparisons = [c for cell in summary.cells for c in cell.comparisons]
    if not comparisons:
        return "No comparison was finished."
    if len(comparisons) == 1:
        return f"{comparisons[0].verdict}: {sentence(comparisons[0], summary.delta)}"
    counts = [
        f"{count} {verdict}"
        for verdict in Verdict
        if (count := sum(c.verdict is verdict for c in comparisons))
    ]
    ratios = [c.ratio for c in comparisons if c.ratio is not None]
    spread = f"; from {percent(min(ratios))} to {percent(max(ratios))}" if ratios else ""
    return f"{len(comparisons)} comparisons: {', '.join(counts)}{spread}."
