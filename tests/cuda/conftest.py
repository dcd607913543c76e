"""A CUDA device for the tests marked ``cuda``; elsewhere they skip, saying what is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvbench.device.cuda.device import CudaDevice
from kvbench.device.cuda.driver import missing


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    lack = missing()
    if lack is not None:
        pytest.skip(f"no CUDA device: {lack}")
    with CudaDevice(poison=True) as device:
        yield device


@pytest.fixture(autouse=True)
def needs_a_gpu(request: pytest.FixtureRequest) -> None:
    """What is marked ``cuda`` is skipped without one, whether it asks for ``device`` or not."""
    if request.node.get_closest_marker("cuda") is not None:
        request.getfixturevalue("device")
