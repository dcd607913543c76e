"""Every hazard of carrying the look-ahead and of writing the tail on the device, by its number.

For each: a scenario in which it can happen runs race-free with the ordered path's bytes, and the
planted fault that commits it is caught by a detector that leaves nothing to luck.
"""

from __future__ import annotations

import pytest

from gates.transport import delivery, sensitivity
from gates.transport.harness import IssueOrder, reference
from gates.transport.harness import run as run_scenario
from gates.transport.scenarios import BY_NAME
from kvbench.decoder.faults import Fault, find
from kvbench.device.cpu.explorer import Picker
from kvbench.device.races import check

HAZARDS = {
    "H1: ring phase of a replayed graph": "graph_blind_phase",
    "H2: a delivery reads a row before its store": "no_store_wait",
    "H3: a host row is rewritten while it is delivered": "shift_in_flight",
    "H4: a delivery lands on a row that the device wrote": "late_on_device_row",
    "H5: rows beyond the length are read": "reads_beyond_length",
    "H6: the carried window has the old geometry": "carry_old_geometry",
    "H7: a block is split": "split_block",
    "H8: host and device keep different bits of a row": "host_row_differs",
    "H9: rows of rejected guesses count as stable": "prefix_of_guesses",
    "H10: a stop found late": "late_stop_unordered",
    "H11: a carry for another batch is used": "carry_unchecked",
    "H12: the prefix survives a reset": "prefix_not_cleared",
    "H13: a shift with deliveries in flight": "shift_in_flight",
    "H14: a ring is freed while a carry is in flight": "ring_freed_in_flight",
    "H15: a slot's previous reader is not waited for": "no_release_wait",
    "H16: memory is freed while work uses it": "elided_close",
    "H17: a store is read before it is complete": "save_without_wait",
    "H18: a device starts before the other has handed over": "no_hand_over_wait",
    "H19: the first token believes in a carry": "phantom_carry",
    "H20: a replay stands still": "graph_stands_still",
    "H21: a wait for an event never recorded": "never_recorded",
}


@pytest.mark.parametrize("hazard", HAZARDS)
def test_a_hazard_is_handled_and_its_fault_is_caught(hazard: str) -> None:
    """H1-H21, one test each: no false alarm, and no escape."""
    fault = find(HAZARDS[hazard])
    assert hazard.partition(":")[0] in fault.hazards
    scenario = BY_NAME[fault.scenario]
    clean = run_scenario(scenario, picker=IssueOrder(0))
    assert (clean.error, clean.leaked, check(clean.log)) == ("", "", [])
    assert clean.digest == reference(scenario).digest
    assert _caught(fault)


def _caught(fault: Fault) -> bool:
    """By the race check, the delivery gate, or an order of the explorer."""
    scenario = BY_NAME[fault.scenario]
    plain = run_scenario(scenario, hooks=fault.hooks(), picker=IssueOrder(0))
    if check(plain.log, limit=1):
        return True
    strict = scenario.name in delivery.STRICT
    if strict and delivery.verify(plain.log, delivery.pitch_of(scenario))[0]:
        return True
    want = reference(scenario).digest
    for seed in range(sensitivity.SEEDS):
        out = run_scenario(scenario, hooks=fault.hooks(), picker=Picker(seed))
        if out.digest != want or out.error:
            return True
    return False
