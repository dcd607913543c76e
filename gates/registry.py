"""What gates there are. Listing them imports none; each is one module with one ``run``.

To add one: write ``gates/NAME.py`` (or a module of a sub-package) with
``run(options: GateOptions) -> GateReport`` and add a line here; see CONTRIBUTING. Packages of
others add theirs through the entry-point group ``kvbench.gates``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from kvbench.errors import SettingError
from kvbench.records.gate import GateReport

ENTRY_POINTS = "kvbench.gates"


class Entry(NamedTuple):
    """A gate: its module, one line about it, whether ``kvbench gate`` runs it unasked, and which
    of the options that change what is run it takes."""

    module: str
    help: str
    default: bool = True
    takes: tuple[str, ...] = ("--model", "--inject", "--set")


SCENARIOS = ("--inject", "--set")
"""What gates take that go over the transport's scenarios, each of which has its model."""

GATES: dict[str, Entry] = {
    "single": Entry("gates.exact.single", "every look-ahead depth gives the ordered path's bytes"),
    "parallel": Entry("gates.exact.parallel", "8 clients asking different questions at once"),
    "elision": Entry("gates.elision.waits", "stock, elided and quiet waits: one output, no race"),
    "speculation": Entry("gates.elision.speculation", "drafting changes no byte"),
    "llamacpp": Entry(
        "gates.peer.llamacpp",
        "decoder and tokenizer agree with llama.cpp (needs xllamacpp)",
        default=False,
    ),
    "races": Entry(
        "gates.transport.races", "every conflicting access is ordered by a wait", takes=SCENARIOS
    ),
    "delivery": Entry(
        "gates.transport.delivery", "each byte delivered once, from its own place", takes=SCENARIOS
    ),
    "structure": Entry(
        "gates.transport.structure", "what makes the pipeline a gain is there", takes=("--set",)
    ),
    "schedules": Entry(
        "gates.transport.schedules", "any legal order gives the same bytes", takes=SCENARIOS
    ),
    "ranges": Entry(
        "gates.transport.ranges", "operations touch what they declare", False, SCENARIOS
    ),
    "recovery": Entry(
        "gates.transport.recovery", "declines and failures change no byte", False, ()
    ),
    "flips": Entry("gates.transport.flips", "no byte of a window is wrong and unseen", False, ()),
    "mutants": Entry(
        "gates.transport.mutants", "each wait and copy, broken, is noticed", False, ()
    ),
    "sensitivity": Entry("gates.transport.sensitivity", "every planted fault is caught", False, ()),
    "base": Entry("gates.transport.base", "the bytes of an earlier build", False, ("--set",)),
}
"""In the order in which they run."""


@dataclass(frozen=True, slots=True)
class GateOptions:
    """What ``kvbench gate`` passes to a gate; options that it does not take are empty."""

    model: str = ""
    """Model reference; empty: the gate's own choice."""
    quick: bool = False
    """A minute's worth: fewer kinds, lengths and depths, said in the report's notes."""
    inject: tuple[str, ...] = ()
    """Faults planted into the arms under test (never into the baseline)."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further settings of the arms under test."""
    seed: int = 1
    timeout_s: float = 600.0
    """Longest time for one run."""
    progress: Callable[[str], None] = lambda _: None


Gate = Callable[[GateOptions], GateReport]


def names(*, default_only: bool = False) -> list[str]:
    """Every gate's name in running order; with ``default_only``, those that run unasked."""
    own = [name for name, entry in GATES.items() if entry.default or not default_only]
    others = sorted(point.name for point in entry_points(group=ENTRY_POINTS))
    return own if default_only else own + [name for name in others if name not in GATES]


def takes(name: str, given: Sequence[str]) -> bool:
    """Whether the gate takes all options ``given``; one of another package says so itself."""
    return name not in GATES or set(given) <= set(GATES[name].takes)


def load(name: str) -> Gate:
    """The gate's entry point. Raises SettingError with the names there are."""
    if name in GATES:
        gate: Gate = importlib.import_module(GATES[name].module).run
        return gate
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == name:
            found: Gate = point.load()
            return found
    raise SettingError("gate", name, "one of " + ", ".join(names()), "argument")
