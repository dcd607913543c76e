from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task
from tests.peers.arms import NO_LLAMA
from tests.peers.tiny_gguf import write_tiny_gguf

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny random GGUF, for llama.cpp's own server."""
    pytest.importorskip("xllamacpp", reason=NO_LLAMA)
    return str(write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.fixture
def example() -> Arm:
    """The documented example arm, as a program of its own."""
    return Arm(
        name="example",
        engine="program",
        command=[sys.executable, "-I", str(HERE / "example_arm.py")],
    )


@pytest.fixture
def task() -> Task:
    return Task(prompts=[[1, 2, 3], [4, 5]], generate=8, detail=True)


HELLO = """
import sys, json, os, time, subprocess, signal
def say(kind, /, **f): print(json.dumps({"type": kind, **f}), flush=True)
def hear(): return json.loads(sys.stdin.readline())
hear(); say("hello", protocol=1, name="bad", version="1")
hear(); say("ready")
m = hear()
ok = {"tokens": 1, "decode_s": 0.0}
"""


@pytest.fixture
def scripted() -> Callable[..., Arm]:
    """An arm from Python source; by default it runs after a good hello and prepare."""

    def make(body: str, preamble: str = HELLO) -> Arm:
        return Arm(
            name="scripted",
            engine="program",
            command=[sys.executable, "-I", "-c", preamble + body],
        )

    return make


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether a process has ended (waits for it up to ``seconds``)."""
    try:
        process = psutil.Process(pid)
        process.wait(seconds)
    except (psutil.NoSuchProcess, psutil.TimeoutExpired):
        pass
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
