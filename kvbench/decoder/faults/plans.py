"""Faults of address: the right operation in the right order on the wrong bytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace

from kvbench.decoder.faults.delays import DelayHooks
from kvbench.device.kernels import View
from kvbench.device.memory import Span
from kvbench.transport.plan import Delivery, Plan
from kvbench.transport.window import Geometry, Range

Edit = Callable[[Delivery, Range, Plan], Range]


class EditRanges(DelayHooks):
    """Every delivered range goes through ``edit``; a result that leaves its storage is kept out."""

    def __init__(self, edit: Edit) -> None:
        super().__init__()
        self.edit = edit

    def plan(self, plan: Plan) -> Plan:
        """The plan with edited ranges."""
        deliveries = []
        for delivery in plan.deliveries:
            early = tuple(self._inside(delivery, r, plan) for r in delivery.early)
            late = tuple(self._inside(delivery, r, plan) for r in delivery.late)
            deliveries.append(replace(delivery, early=early, late=late))
        return replace(plan, deliveries=tuple(deliveries))

    def _inside(self, delivery: Delivery, part: Range, plan: Plan) -> Range:
        edited = self.edit(delivery, part, plan)
        end = edited.source + (edited.count - 1) * edited.source_pitch + edited.length
        top = edited.target + (edited.count - 1) * edited.target_pitch + edited.length
        fits = edited.source >= 0 and end <= delivery.storage.buffer.nbytes
        return edited if fits and top <= plan.slot_bytes and edited.length >= 0 else part


def source_row_late(delivery: Delivery, part: Range, plan: Plan) -> Range:
    """Off by one row in the source."""
    moved = replace(part, source=part.source + plan.pitch)
    end = moved.source + (moved.count - 1) * moved.source_pitch + moved.length
    return (
        moved
        if end <= delivery.storage.buffer.nbytes
        else replace(part, source=part.source - plan.pitch)
    )


def wrong_stride(delivery: Delivery, part: Range, plan: Plan) -> Range:
    """The distance between streams is a row short."""
    return replace(part, source_pitch=part.source_pitch - plan.pitch)


def one_cell(delivery: Delivery, part: Range, plan: Plan) -> Range:
    """Sized by the wrong dimension: one cell per stream is delivered."""
    return replace(part, length=plan.pitch)


def neighbour_stream(delivery: Delivery, part: Range, plan: Plan) -> Range:
    """Another sequence's rows."""
    step = delivery.storage.capacity * plan.pitch
    if delivery.storage.streams == 1:
        return part
    first = part.source % delivery.storage.part_bytes < step
    return replace(part, count=1, source=part.source + (step if first else -step))


def rotated_heads(delivery: Delivery, part: Range, plan: Plan) -> Range:
    """Heads of a row in another order: the delivery starts half a row in."""
    return replace(part, source=part.source + plan.pitch // 2, length=part.length - plan.pitch)


def split_block(delivery: Delivery, part: Range, plan: Plan) -> Range:
    """The range ends inside a block (H7)."""
    return replace(part, length=part.length // 2 + 7)


class WrongLayer(DelayHooks):
    """Each split is delivered the next one's rows."""

    def plan(self, plan: Plan) -> Plan:
        """Storages moved on by one."""
        storages = [d.storage for d in plan.deliveries]
        turned = storages[1:] + storages[:1]
        deliveries = tuple(
            replace(d, storage=s) for d, s in zip(plan.deliveries, turned, strict=True)
        )
        return replace(plan, deliveries=deliveries)


class LateOnDeviceTail(DelayHooks):
    """A rounded-up delivery lands on the row that the device wrote (H4)."""

    def plan(self, plan: Plan) -> Plan:
        """The last rows of each window are delivered once more, after the store."""
        deliveries = tuple(replace(d, late=d.early) for d in plan.deliveries)
        return replace(plan, deliveries=deliveries)


class LongPrefix(DelayHooks):
    """The stable prefix is ``rows`` too long: a tail is delivered before it is made."""

    def __init__(self, rows: int = 1) -> None:
        super().__init__()
        self.rows = rows

    def prefix(self, stream: int, rows: int) -> int:
        """Too many."""
        return rows + self.rows


class StalePrefix(DelayHooks):
    """The prefix of the longest history seen is kept when history is rewritten."""

    def __init__(self) -> None:
        super().__init__()
        self._longest: dict[int, int] = {}

    def prefix(self, stream: int, rows: int) -> int:
        """Never less than before."""
        self._longest[stream] = max(self._longest.get(stream, 0), rows)
        return self._longest[stream]


class StaleSlot(DelayHooks):
    """The consumer of the last slot reads the slot before it."""

    def view(self, view: View, split: int, slot_bytes: int) -> View:
        """One slot back, where there is one."""
        return replace(view, base=view.base - slot_bytes) if view.base >= slot_bytes else view


class SlotShift(DelayHooks):
    """Deliveries land one row further on in the slot."""

    def copy_spans(self, dst: Span, src: Span, site: str, split: int) -> tuple[Span, Span]:
        """The target moved by the length of 16 bytes, if it still fits."""
        if site not in ("early", "late") or dst.end + 16 > dst.buffer.nbytes:
            return dst, src
        return Span(dst.buffer, dst.offset + 16, dst.length, dst.count, dst.pitch), src


class OldGeometry(DelayHooks):
    """The look-ahead delivers the present geometry although the window outgrows it (H6)."""

    def next_geometry(self, after: Geometry, now: Geometry) -> Geometry:
        """Today's."""
        return now

    def carry_valid(self, valid: bool) -> bool:
        """And nobody checks."""
        return True


class StaleGraph(DelayHooks):
    """A captured graph is launched although the window it was captured for has changed (H6)."""

    def graph_key(self, key: Hashable, geometry: Geometry) -> Hashable:
        """All geometries alike."""
        return "any"
