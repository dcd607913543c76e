"""A divergence in plain words, and what it is called. A near-tie is named, never acquitted."""

from __future__ import annotations

from kvbench.records.gate import Conclusion, Divergence, Side

NEAR_TIE = 0.05
"""Logits. Small corruption shows first where the two best candidates are this close."""


def is_near_tie(divergence: Divergence) -> bool | None:
    """Whether both arms' margins at the first difference are small; None where one is unknown."""
    if divergence.baseline is None or divergence.arm is None:
        return None
    margins = (divergence.baseline.margin, divergence.arm.margin)
    if None in margins:
        return None
    return all(margin is not None and abs(margin) <= NEAR_TIE for margin in margins)


def conclude(divergence: Divergence, repeats: bool | None, clear_elsewhere: bool) -> Conclusion:
    """``clear_elsewhere``: on equal tokens, the arms choose differently at a clear margin."""
    if repeats is False:
        return "irreproducible"
    near = is_near_tie(divergence)
    if clear_elsewhere or near is False:
        return "corrupted" if divergence.kind == "tokens" or clear_elsewhere else "different"
    return "near-tie" if near else "different"


def describe(divergence: Divergence) -> str:
    """``sequence 3, position 17: token 42 (margin 1.3) became 57 (margin 0.2)``."""
    place = ", ".join(
        f"{name} {value}"
        for name, value in (
            ("sequence", divergence.sequence),
            ("position", divergence.position),
        )
        if value is not None
    )
    if divergence.baseline is None or divergence.arm is None:
        what = f"{divergence.kind} differ: {divergence.detail}"
    elif divergence.kind == "logits":
        what = (
            f"token {divergence.baseline.token} in both, from different logits "
            f"({_margin(divergence.baseline)} became {_margin(divergence.arm)})"
        )
    else:
        what = f"{_side(divergence.baseline)} became {_side(divergence.arm)}"
    return f"first at {place}: {what}" if place else what


def explain(conclusion: Conclusion, repeats: bool | None) -> str:
    """The sentence after the description."""
    again = {True: "; repeated, it gives the same", False: "", None: ""}[repeats]
    return {
        "": "",
        "same": "",
        "near-tie": "a near-tie, which acquits nothing" + again,
        "different": "different" + again,
        "corrupted": "not a near-tie: corrupted" + again,
        "irreproducible": "irreproducible: repeated, the arm gives something else",
    }[conclusion]


def _side(side: Side) -> str:
    if side.text:
        known = f" ({_margin(side)})" if side.margin is not None else ""
        return f"{side.text!r}{known}"
    if side.token is None:
        return "the end"
    return f"token {side.token} ({_margin(side)})"


def _margin(side: Side) -> str:
    return "margin unavailable" if side.margin is None else f"margin {side.margin:.4g}"
