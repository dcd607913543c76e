"""The transport's scenarios on a GPU: the ordered path's bytes, no race, nothing left behind."""

from __future__ import annotations

import pytest

from gates.transport.harness import Outcome, run
from gates.transport.scenarios import SCENARIOS, Scenario
from kvbench.decoder.faults.delays import SITES
from kvbench.device.cuda.device import CudaDevice
from kvbench.device.races import check

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def references() -> dict[str, Outcome]:
    return {}


@pytest.mark.parametrize("delays", sorted(SITES))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_scenario(
    device: CudaDevice, references: dict[str, Outcome], scenario: Scenario, delays: str
) -> None:
    """Exact with delays injected by spinning kernels on either queue."""
    if scenario.name not in references:
        references[scenario.name] = run(
            scenario, device="cuda", depth=0, graphs=False, devices=1, delays="none"
        )
    wanted = references[scenario.name]
    got = run(scenario, device="cuda", delays=delays, delay_ms=1.0)
    assert (got.error, got.leaked) == ("", "")
    assert got.digest == wanted.digest
    assert check(got.log) == []
