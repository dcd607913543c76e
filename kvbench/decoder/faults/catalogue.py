"""Every planted fault: what it breaks, what it resembles, and the scenario in which it shows.

Kinds are those of public reports (see the table that ``kvbench faults`` prints). A fault is a
Hooks object; production code carries none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kvbench.decoder.faults import plans, waits, work
from kvbench.decoder.faults.delays import DelayHooks

STORE_EARLY = "device-to-host store read before it landed"
OVERWRITE = "load overwrites a slot that is still being read"
IGNORED = "wait event created and then ignored"
REPLAY = "graph replay that skips a wait or replays a stale pointer"
ELIDED = "an elided synchronize that was needed"
REWRITTEN = "host buffer rewritten while a copy is in flight"
INDEX = "wrong buffer index, stale slot, off-by-one slot count"
FREED = "ring or pinned memory freed while in flight"
PREFIX = "wrong prefix: too long, not refreshed, not cleared"
STRIDE = "wrong stride, wrong dimension, one cell per stream, cross-sequence read"
PADDING = "quantisation padding not cleared"
LAYER = "prefetch of the wrong layer"
SIDECAR = "sidecar state not carried along"
HEADS = "wrong head mapping after a split"
PROMPT = "prompt served from a prefix cache in one arm only"
PREFETCH = "offloaded cache racing its own prefetch"

KINDS = (
    STORE_EARLY,
    OVERWRITE,
    IGNORED,
    REPLAY,
    ELIDED,
    REWRITTEN,
    INDEX,
    FREED,
    PREFIX,
    STRIDE,
    PADDING,
    LAYER,
    SIDECAR,
    HEADS,
    PROMPT,
    PREFETCH,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One planted fault. ``hooks`` makes a fresh one for each run."""

    name: str
    kind: str
    breaks: str
    """What goes wrong, in a sentence."""
    hooks: Callable[[], DelayHooks]
    scenario: str
    """Name of the gate scenario in which it is active."""
    hazards: tuple[str, ...] = ()
    resembles: str = ""
    """Public report of the same kind."""
    tags: tuple[str, ...] = field(default=())


class _OthersPrompt(DelayHooks):
    """Sequence 1 starts from sequence 0's kept prompt."""

    def history_of(self, sequence: int) -> int:
        """The first one's for all."""
        return 0


FAULTS: tuple[Fault, ...] = (
    Fault(
        "no_store_wait",
        STORE_EARLY,
        "a delivery reads a new row before its store has landed",
        lambda: waits.NoWait("store"),
        "few",
        ("H2",),
        "vllm 36013",
    ),
    Fault(
        "save_without_wait",
        STORE_EARLY,
        "the state is saved while stores are in flight",
        lambda: waits.NoDrain("save"),
        "save",
        ("H17",),
        "llama.cpp 18310",
    ),
    Fault(
        "no_tail_wait",
        STORE_EARLY,
        "the late tail is delivered before the store of its rows",
        lambda: waits.NoWait("tail"),
        "host",
        ("H2",),
        "vllm 45704",
    ),
    Fault(
        "no_release_wait",
        OVERWRITE,
        "a delivery lands in a slot that is still being read",
        lambda: waits.NoWait("release"),
        "decode",
        ("H15",),
        "vllm 47282",
    ),
    Fault(
        "no_boundary_wait",
        OVERWRITE,
        "a graph delivers while the one before still reads",
        lambda: waits.NoWait("boundary"),
        "wait",
        ("H11",),
        "sglang 36738",
    ),
    Fault(
        "no_wait_after_decline",
        STORE_EARLY,
        "the first staged graph after a declined one does not wait for the rows that it stored",
        lambda: waits.NoWait("boundary"),
        "declined",
        ("H14",),
        "vllm 36013",
    ),
    Fault(
        "no_ready_wait",
        IGNORED,
        "attention reads a slot before its delivery is complete",
        lambda: waits.NoWait("ready"),
        "decode",
        (),
        "sglang 22811",
    ),
    Fault(
        "no_ready_wait_last_slot",
        IGNORED,
        "one accessor skips the wait: the last slot's",
        lambda: waits.NoWait("ready", "ready2"),
        "decode",
        (),
        "diffusers 13502",
    ),
    Fault(
        "never_recorded",
        IGNORED,
        "ready is waited for but never recorded",
        lambda: waits.NoRecord("ready"),
        "decode",
        ("H21",),
        "sglang 22811",
    ),
    Fault(
        "no_hand_over_wait",
        IGNORED,
        "a device starts before it has the hidden state",
        lambda: waits.NoWait("hand_over"),
        "split",
        ("H18",),
        "diffusers 13502",
    ),
    Fault(
        "graph_skips_wait",
        REPLAY,
        "a captured graph leaves out the wait for ready",
        lambda: waits.NoWait("ready", "ready1"),
        "graphs",
        ("H15",),
        "vllm 29608",
    ),
    Fault(
        "graph_stale_window",
        REPLAY,
        "a graph captured for another window is launched",
        plans.StaleGraph,
        "graphs",
        ("H6", "H16"),
        "ik_llama.cpp 2136",
    ),
    Fault(
        "graph_blind_phase",
        REPLAY,
        "a graph is launched that starts at another slot",
        work.PhaseBlindGraph,
        "graphs",
        ("H1",),
        "ik_llama.cpp 2136",
    ),
    Fault(
        "graph_stands_still",
        REPLAY,
        "a replayed graph writes the same position again",
        lambda: work.Wrap("choose", work.stands_still),
        "graphs",
        ("H20",),
        "vllm 29608",
    ),
    Fault(
        "launch_overtakes",
        REPLAY,
        "a launch does not wait for deliveries made outside it",
        lambda: waits.NoWait("launch"),
        "mixed_graphs",
        ("H15",),
        "vllm 29608",
    ),
    Fault(
        "elided_read",
        ELIDED,
        "logits are read on the host without a synchronize",
        lambda: waits.NoSync("read"),
        "decode",
        ("H17",),
        "llama.cpp 17795",
    ),
    Fault(
        "elided_close",
        ELIDED,
        "memory is freed at the end without a synchronize",
        lambda: waits.NoSync("close", "drop graphs"),
        "long_prompt",
        ("H16",),
        "ik_llama.cpp 2083",
    ),
    Fault(
        "staging_reused",
        REWRITTEN,
        "upload staging is refilled while its copy is in flight",
        lambda: waits.NoSync("staging"),
        "long_prompt",
        ("H3",),
        "llama.cpp 8897",
    ),
    Fault(
        "shift_in_flight",
        REWRITTEN,
        "a context shift rewrites rows that are being delivered",
        lambda: waits.NoDrain("shift"),
        "shift",
        ("H3", "H13"),
        "llama.cpp 23827",
    ),
    Fault(
        "clear_in_flight",
        REWRITTEN,
        "the cache is cleared while rows are being delivered",
        lambda: waits.NoDrain("clear"),
        "clear",
        ("H3",),
        "llama.cpp 28056",
    ),
    Fault(
        "load_in_flight",
        REWRITTEN,
        "a state is loaded over rows that are being delivered",
        lambda: waits.NoDrain("load"),
        "save",
        ("H3",),
        "vllm 25279",
    ),
    Fault(
        "stale_slot",
        INDEX,
        "a consumer reads the slot before its own",
        plans.StaleSlot,
        "decode",
        ("H1",),
        "llama.cpp 14855",
    ),
    Fault(
        "slot_shifted",
        INDEX,
        "deliveries land 16 bytes further on",
        plans.SlotShift,
        "decode",
        (),
        "llama.cpp 14855",
    ),
    Fault(
        "ring_freed_in_flight",
        FREED,
        "a ring is replaced while a carry is in flight",
        lambda: waits.NoSync("free ring"),
        "resize",
        ("H14",),
        "pytorch 130785",
    ),
    Fault(
        "prefix_too_long",
        PREFIX,
        "a row counts as stable that this graph writes",
        plans.LongPrefix,
        "host",
        (),
        "vllm 7018",
    ),
    Fault(
        "prefix_of_guesses",
        PREFIX,
        "rows of guesses that may be rejected count as stable",
        lambda: plans.LongPrefix(5),
        "speculate_host",
        ("H9",),
        "vllm 7018",
    ),
    Fault(
        "prefix_not_cleared",
        PREFIX,
        "the prefix survives a reset of the sequence",
        plans.StalePrefix,
        "reset_host",
        ("H12", "H13"),
        "vllm 49449",
    ),
    Fault(
        "late_stop_unordered",
        REWRITTEN,
        "a stop found late: the next prefill rewrites rows that a look-ahead is reading",
        lambda: waits.NoWait("discard"),
        "late_stop",
        ("H10",),
        "vllm 31841",
    ),
    Fault(
        "carry_unchecked",
        PREFIX,
        "carried deliveries are used by a graph they do not fit",
        waits.AnyCarry,
        "reset",
        ("H11", "H12"),
        "vllm 49449",
    ),
    Fault(
        "carry_old_geometry",
        PREFIX,
        "the look-ahead delivers a window that was outgrown",
        plans.OldGeometry,
        "grow",
        ("H6",),
        "vllm 49449",
    ),
    Fault(
        "phantom_carry",
        PREFIX,
        "the first token believes that its window was carried",
        waits.PhantomCarry,
        "decode",
        ("H19",),
        "vllm 7018",
    ),
    Fault(
        "source_off_by_one_row",
        STRIDE,
        "deliveries start one row late in the source",
        lambda: plans.EditRanges(plans.source_row_late),
        "decode",
        (),
        "llama.cpp 14742",
    ),
    Fault(
        "wrong_stride",
        STRIDE,
        "the distance between streams is a row short",
        lambda: plans.EditRanges(plans.wrong_stride),
        "decode",
        (),
        "llama.cpp 27994",
    ),
    Fault(
        "one_cell_per_stream",
        STRIDE,
        "a range is sized by the wrong dimension",
        lambda: plans.EditRanges(plans.one_cell),
        "decode",
        (),
        "llama.cpp 14742",
    ),
    Fault(
        "cross_sequence",
        STRIDE,
        "a sequence is delivered its neighbour's rows",
        lambda: plans.EditRanges(plans.neighbour_stream),
        "decode",
        (),
        "llama.cpp 27994",
    ),
    Fault(
        "split_block",
        STRIDE,
        "a delivery ends inside a block",
        lambda: plans.EditRanges(plans.split_block),
        "padded",
        ("H7",),
        "llama.cpp 14742",
    ),
    Fault(
        "reads_beyond_length",
        STRIDE,
        "attention takes in a row beyond the sequence's end",
        lambda: work.Wrap("attend", work.reads_beyond),
        "decode",
        ("H5",),
        "llama.cpp 14742",
    ),
    Fault(
        "padding_not_cleared",
        PADDING,
        "row padding is whatever the memory held before",
        work.UnclearedMemory,
        "padded",
        ("H7",),
        "llama.cpp 10032",
    ),
    Fault(
        "wrong_layer",
        LAYER,
        "each split is delivered the next layer's rows",
        plans.WrongLayer,
        "decode",
        (),
        "transformers 46748",
    ),
    Fault(
        "state_not_fetched",
        SIDECAR,
        "an offloaded recurrent state is not brought along",
        lambda: work.SkipCopies("state"),
        "hybrid",
        (),
        "sglang 17085",
    ),
    Fault(
        "state_not_stored",
        SIDECAR,
        "a recurrent state is updated and not stored back",
        lambda: work.SkipCopies("state_store"),
        "hybrid",
        (),
        "sglang 17085",
    ),
    Fault(
        "host_row_differs",
        SIDECAR,
        "host and device keep different bits of a new row",
        lambda: work.Wrap("store", work.stores_other_bits),
        "decode",
        ("H8",),
        "sglang 17085",
    ),
    Fault(
        "rotated_heads",
        HEADS,
        "a row's heads are delivered in another order",
        lambda: plans.EditRanges(plans.rotated_heads),
        "split",
        (),
        "a tensor-split cache delivered whole",
    ),
    Fault(
        "others_prompt",
        PROMPT,
        "a sequence starts from another prompt's kept history",
        _OthersPrompt,
        "task",
        (),
        "llama.cpp 4902",
    ),
    Fault(
        "racing_prefetch",
        PREFETCH,
        "neither ready nor release is waited for",
        lambda: waits.NoWaits("ready", "release"),
        "decode",
        (),
        "transformers 48947",
    ),
    Fault(
        "late_on_device_row",
        PREFETCH,
        "a late delivery lands on the row the device wrote",
        plans.LateOnDeviceTail,
        "decode",
        ("H4",),
        "transformers 48947",
    ),
)

BY_NAME = {fault.name: fault for fault in FAULTS}
