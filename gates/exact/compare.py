"""Two outputs of one task: equal to the byte, or where they first differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from kvbench.engines.protocol import Reply, Top2
from kvbench.records.gate import Divergence, Side

T = TypeVar("T", str, int)

DELIVERED = ("early", "late", "ordered")
"""Kinds of one payload that differ in *when* it moves: parity is over their sum."""

EXACT_HASHES = ("tokens", "logits", "audit")
"""Digests that must be equal where both arms give them."""


def margin(top2: Top2 | None) -> float | None:
    """Best minus second best; None where unavailable."""
    return None if top2 is None else top2[1] - top2[3]


def moved(by_kind: Mapping[str, int]) -> dict[str, int]:
    """Bytes that must be equal in two arms: the deliveries as one sum, other kinds by name."""
    delivered = [by_kind[kind] for kind in DELIVERED if kind in by_kind]
    others = {kind: count for kind, count in by_kind.items() if kind not in DELIVERED}
    return ({"delivered": sum(delivered)} if delivered else {}) | others


def evidence(reply: Reply) -> list[str]:
    """What of an output can be compared; nothing for an arm that only gives a speed."""
    given = [("token ids", bool(reply.tokens)), ("text", bool(reply.texts))]
    hashes = [(f"{name} hash", name in reply.result.hashes) for name in EXACT_HASHES]
    return [name for name, there in given + hashes if there]


def shared_evidence(one: Reply, other: Reply) -> list[str]:
    """What both outputs have, so that ``first_divergence`` can compare it."""
    return [name for name in evidence(one) if name in evidence(other)]


def first_divergence(
    baseline: Reply, arm: Reply, *, bytes_may_differ: bool = False
) -> Divergence | None:
    """The first difference that matters most to name: tokens, then text, hashes, counts, bytes."""
    for difference in (
        _tokens(baseline, arm),
        _pieces(baseline, arm),
        _texts(baseline.texts, arm.texts),
        _top2(baseline, arm),
        _hashes(baseline.result.hashes, arm.result.hashes),
        _stops(baseline.stops, arm.stops),
        _count(baseline, arm),
        None if bytes_may_differ else _bytes(baseline.result.bytes, arm.result.bytes),
    ):
        if difference is not None:
            return difference
    return None


def drift(baseline: Reply, arm: Reply) -> float | None:
    """Largest difference of the best candidate's logit where both chose the same token."""
    if baseline.top2 is None or arm.top2 is None:
        return None
    pairs = [
        (a, b)
        for one, other in zip(baseline.top2, arm.top2, strict=True)
        for a, b in zip(one, other, strict=False)
        if a is not None and b is not None and a[0] == b[0]
    ]
    return max((abs(a[1] - b[1]) for a, b in pairs), default=None)


def _tokens(baseline: Reply, arm: Reply) -> Divergence | None:
    return _positions(
        (baseline, baseline.tokens),
        (arm, arm.tokens),
        lambda token, margin: Side(token=token, margin=margin),
    )


def _pieces(baseline: Reply, arm: Reply) -> Divergence | None:
    """Text token by token: it has a position and margins, which text alone has not."""
    return _positions(
        (baseline, baseline.pieces),
        (arm, arm.pieces),
        lambda text, margin: Side(text=text or "", margin=margin),
    )


def _positions(
    wanted: tuple[Reply, Sequence[Sequence[T]] | None],
    given: tuple[Reply, Sequence[Sequence[T]] | None],
    side: Callable[[T | None, float | None], Side],
) -> Divergence | None:
    """The first position of a sequence at which two outputs differ, with both margins there."""
    (baseline, ones), (arm, others) = wanted, given
    if ones is None or others is None:
        return None
    for sequence, (one, other) in enumerate(zip(ones, others, strict=True)):
        for position, (a, b) in enumerate(itertools.zip_longest(one, other)):
            if a != b:
                return Divergence(
                    kind="tokens",
                    sequence=sequence,
                    position=position,
                    baseline=side(a, _margin_at(baseline, sequence, position)),
                    arm=side(b, _margin_at(arm, sequence, position)),
                )
    return None


def _margin_at(reply: Reply, sequence: int, position: int) -> float | None:
    if reply.top2 is None or position >= len(reply.top2[sequence]):
        return None
    return margin(reply.top2[sequence][position])


def _texts(baseline: Sequence[str] | None, arm: Sequence[str] | None) -> Divergence | None:
    if baseline is None or arm is None:
        return None
    for sequence, (one, other) in enumerate(zip(baseline, arm, strict=True)):
        if one != other:
            pairs = enumerate(itertools.zip_longest(one, other))
            position = next(at for at, (a, b) in pairs if a != b)
            return Divergence(
                kind="text",
                sequence=sequence,
                position=position,
                baseline=Side(text=one[position : position + 20]),
                arm=Side(text=other[position : position + 20]),
            )
    return None


def _top2(baseline: Reply, arm: Reply) -> Divergence | None:
    """Equal tokens from different logits, for arms that vouch for their logits' bytes.

    A server's log probabilities may follow the batch that a row shared; ``drift`` measures them.
    """
    vouched = all("logits" in reply.result.hashes for reply in (baseline, arm))
    if baseline.top2 is None or arm.top2 is None or not vouched:
        return None
    for sequence, (one, other) in enumerate(zip(baseline.top2, arm.top2, strict=True)):
        for position, (a, b) in enumerate(zip(one, other, strict=False)):
            if a is not None and b is not None and tuple(a) != tuple(b):
                return Divergence(
                    kind="logits",
                    sequence=sequence,
                    position=position,
                    baseline=Side(token=a[0], margin=margin(a)),
                    arm=Side(token=b[0], margin=margin(b)),
                )
    return None


def _hashes(baseline: Mapping[str, str], arm: Mapping[str, str]) -> Divergence | None:
    for name in EXACT_HASHES:
        one, other = baseline.get(name), arm.get(name)
        if one is not None and other is not None and one != other:
            return Divergence(kind=name, detail=f"{name} hash {one[:12]} against {other[:12]}")
    return None


def _stops(baseline: Sequence[str] | None, arm: Sequence[str] | None) -> Divergence | None:
    if baseline is None or arm is None:
        return None
    for sequence, (one, other) in enumerate(zip(baseline, arm, strict=True)):
        if one != other:
            return Divergence(kind="stop", sequence=sequence, detail=f"{one!r} against {other!r}")
    return None


def _count(baseline: Reply, arm: Reply) -> Divergence | None:
    one, other = baseline.result.tokens, arm.result.tokens
    return (
        None if one == other else Divergence(kind="count", detail=f"{one} against {other} tokens")
    )


def _bytes(baseline: Mapping[str, int], arm: Mapping[str, int]) -> Divergence | None:
    one, other = moved(baseline), moved(arm)
    if not one or not other:
        return None
    for kind in sorted({*one, *other}):
        if one.get(kind, 0) != other.get(kind, 0):
            detail = f"{kind} bytes {one.get(kind, 0)} against {other.get(kind, 0)}"
            return Divergence(kind="bytes", detail=detail)
    return None
