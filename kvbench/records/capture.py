"""A capture: what one arm asked of its device and what the device did, over some tokens.

The same data from three sources: Nsight Systems' sqlite export, CUPTI, or the device's own op
log. Times are integer nanoseconds on one clock per capture, from an arbitrary origin.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from kvbench.errors import UsageError

CAPTURE_VERSION = 1
Source = Literal["nsys", "cupti", "oplog"]


class ApiCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One call into the driver by the host."""

    name: str
    """Without a version suffix: ``cudaStreamSynchronize``."""
    start: int
    end: int
    """Equal to ``start`` where the source does not time calls."""
    site: str = ""
    """Call site (op log only)."""
    thread: int = 0
    correlation: int = 0


class Work(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One piece of work on a queue of a device."""

    kind: Literal["kernel", "copy", "memset", "graph", "host"]
    """``graph``: a whole graph launch whose nodes were not traced."""
    queue: str
    label: str
    start: int
    end: int
    nbytes: int = 0
    direction: str = ""
    """``host_to_device``, ``device_to_host`` ...; for copies."""
    site: str = ""
    split: int = -1
    slot: int = -1
    graph: bool = False
    """Part of a launched graph: no API call of its own stands behind it."""
    correlation: int = 0
    after: tuple[int, ...] = ()
    """Indices of earlier work on other queues that this waited for (op log only)."""


class NamedRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An NVTX range, or a token of the op log."""

    name: str
    start: int
    end: int
    thread: int = 0


class Capture(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One arm's capture, warm-up excluded."""

    v: int
    arm: str
    source: Source
    tool: str
    """Program and version that recorded it."""
    tokens: int | None
    """Generated tokens inside; None if that is not known (a user's own capture)."""
    api: tuple[ApiCall, ...] = ()
    work: tuple[Work, ...] = ()
    ranges: tuple[NamedRange, ...] = ()
    waits: dict[str, tuple[int, int, int]] = {}
    """By call site: made, elided, redundant; empty where the source does not know sites."""
    absent: dict[str, str] = {}
    """Kinds of data this capture does not hold, with the reason. Absent is not zero."""

    def span(self) -> tuple[int, int]:
        """First start and last end of anything in it; (0, 0) when empty."""
        times = [(i.start, i.end) for i in self.api] + [(i.start, i.end) for i in self.work]
        if not times:
            return 0, 0
        return min(start for start, _ in times), max(end for _, end in times)


TOKEN = "token"
"""Name of the ranges that divide a capture into tokens, and of the op log's marks."""
END = "end of decoding"
"""The op log's mark behind the last token."""


COPY_KINDS = {
    1: "host_to_device", 2: "device_to_host", 8: "device_to_device", 10: "peer_to_peer",
}  # fmt: skip
"""CUPTI's numbers of copy kinds."""


def api_name(raw: str) -> str:
    """``cudaStreamSynchronize`` for ``cudaStreamSynchronize_v3020``."""
    return re.sub(r"_v\d+$", "", raw)


def tokens(capture: Capture) -> list[NamedRange]:
    """The ranges that are tokens, in order."""
    return sorted((r for r in capture.ranges if r.name == TOKEN), key=lambda r: r.start)


def encode_capture(capture: Capture) -> bytes:
    """Compact JSON."""
    return msgspec.json.encode(capture)


def decode_capture(data: bytes, source: str) -> Capture:
    """Read what ``encode_capture`` wrote. Raises ``UsageError`` that names ``source``."""
    try:
        capture = msgspec.json.decode(data, type=Capture)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{source}: not a capture: {error}") from error
    if capture.v != CAPTURE_VERSION:
        raise UsageError(
            f"{source}: capture version {capture.v}; this kvbench reads {CAPTURE_VERSION}"
        )
    return capture
