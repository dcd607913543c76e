"""Where the token loop waits on the host: the sites of a stock engine, and the arm without them.

``stock`` and ``elided`` run the same code: at each site below the host synchronizes every device,
as a real engine's getters do; the context decides whether the call is made. ``quiet`` makes none
of these calls: arg-max feeds the next token on the device and the host reads behind it, once a
token. The table is checked against real counts, and against the op log, in the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvbench.device.context import WaitMode

if TYPE_CHECKING:
    from kvbench.decoder.stage import Stage

Unit = Literal["graph", "row", "token"]
"""A graph, a decode row whose cells a unified cache uploads, or a token sampled on the host."""


class Site(NamedTuple):
    """One wait. ``elided``: how many of its calls are really made when elision is on."""

    name: str
    per: Unit
    elided: int
    why: str
    for_result: bool = True
    """False: the host touches nothing new before its next wait; safe, but redundant."""


SITES: tuple[Site, ...] = (
    Site("decode.enter", "graph", 0, "a decode call waits before it reuses the output buffers"),
    Site("cache.update", "graph", 0, "pending shifts and copies of the cache may touch its rows"),
    Site("upload.tokens", "graph", 1, "the input's host memory is used again for the next input"),
    Site("upload.positions", "graph", 1, "the same"),
    Site("upload.places", "graph", 1, "the same (rows, streams and lanes of the cache)"),
    Site("upload.cells", "row", 1, "the same (cell list of a unified cache)"),
    Site("graph.inputs", "graph", 0, "the scheduler waits before it hands inputs to a split"),
    Site("graph.reserve", "graph", 0, "the scheduler waits before it reuses its working buffers"),
    Site("graph.done", "graph", 1, "the blocking entry point waits for the graph", False),
    Site("get.logits", "token", 1, "the host reads the row's logits"),
    Site("get.token", "token", 0, "getter of a token sampled on the device, asked first"),
    Site("get.probabilities", "token", 0, "getter of probabilities sampled on the device"),
    Site("get.candidates", "token", 0, "getter of candidates sampled on the device"),
    Site("get.embeddings", "token", 0, "getter of the row's embeddings"),
    Site("sampler.enter", "token", 0, "the sampler waits for its context"),
    Site("sampler.logits", "token", 0, "the sampler fetches the logits again, through the getter"),
    Site("sampler.accept", "token", 0, "the sampler accepts the token"),
    Site("sampler.hand_over", "token", 0, "the token is handed to the decode loop"),
    Site("decode.leave", "graph", 0, "the decode call's caller waits before it goes on"),
)
"""In the order in which a token meets them. ``get.logits`` is real once a graph, for its first
token: the others of the same graph find the mark clear."""

BEFORE = ("decode.enter", "cache.update")
BEFORE_GRAPH = ("graph.inputs", "graph.reserve")
AFTER_GRAPH = ("graph.done",)
AFTER = ("decode.leave",)
LOGITS = ("get.logits",)
SAMPLER = tuple(s.name for s in SITES if s.per == "token" and s.name != "get.logits")
_SAFE = frozenset(s.name for s in SITES if not s.for_result)


class Work(NamedTuple):
    """What a context did, in the units of the table."""

    graphs: int = 0
    read: int = 0
    """Graphs of which the host sampled at least one token."""
    tokens: int = 0
    """Tokens sampled on the host."""
    rows: int = 0
    """Groups of rows whose cells were uploaded, in a unified cache."""


def predicted(mode: WaitMode, work: Work) -> dict[str, tuple[int, int]]:
    """Site to (calls really made, calls elided) at the sites above, on one device."""
    counts: dict[str, tuple[int, int]] = {}
    for site in SITES:
        met = {"graph": work.graphs, "token": work.tokens, "row": work.rows}[site.per]
        real = {"graph": work.graphs, "token": work.read, "row": work.rows}[site.per]
        made = {"stock": met, "elided": site.elided * real, "quiet": 0}[mode]
        if met and mode != "quiet":
            counts[site.name] = (made, met - made)
    return counts


def real_waits(mode: WaitMode, work: Work) -> int:
    """The sum of the calls really made."""
    return sum(made for made, _ in predicted(mode, work).values())


@dataclass(slots=True)
class WaitPattern:
    """The waits of one decoder's loop; ``stages`` are filled in when they exist."""

    mode: WaitMode
    stages: list[Stage] = field(default_factory=list)

    @property
    def host_samples(self) -> bool:
        """Whether the host chooses each token before the next graph is issued."""
        return self.mode != "quiet"

    def at(self, sites: Sequence[str]) -> None:
        """Meet ``sites`` in turn; each waits for every device."""
        if not self.host_samples:
            return
        for site in sites:
            for stage in self.stages:
                self.at_stage(stage, site)

    def at_stage(self, stage: Stage, site: str) -> None:
        """Meet one site that concerns one device only."""
        if self.host_samples:
            stage.device.synchronize(stage.compute, site, for_result=site not in _SAFE)
