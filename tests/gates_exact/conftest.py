from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task

HERE = Path(__file__).parent


@pytest.fixture
def arm() -> Callable[..., Arm]:
    """A faulty arm by its settings; without any it is the correct one."""

    def make(name: str, **settings: object) -> Arm:
        command = [sys.executable, "-I", str(HERE / "faulty_arm.py")]
        return Arm(name=name, engine="program", command=command, settings=settings)

    return make


@pytest.fixture
def tasks() -> list[Task]:
    return [
        Task(name="one", prompts=[[1, 2, 3]], generate=16),
        Task(name="four", prompts=[[i, i + 1] for i in range(4)], generate=16),
    ]
