"""M1: in which order the runs of a block go."""

from __future__ import annotations

from collections.abc import Sequence


def block_order(arms: Sequence[str], block: int) -> tuple[str, ...]:
    """Arms of block ``block``, both passes: rotated by the block's number, then reversed.

    Two arms give ABBA, BAAB, ABBA ... A run's pass is ``position // len(arms)``.
    """
    shift = block % len(arms)
    first = (*arms[shift:], *arms[:shift])
    return first + first[::-1]


def positions_are_balanced(arms: int, blocks: int) -> bool:
    """Whether each arm meets each position equally often, so that quadratic drift cancels too."""
    return blocks % arms == 0
