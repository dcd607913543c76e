"""Suites with synthetic arms, and a watcher that keeps what it is told."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ARM = Path(__file__).with_name("synthetic_arm.py")
COMMAND = [sys.executable, "-I", "-S", str(ARM)]


class Told:
    """A watcher."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.total = 0
        """Runs that are known to be needed."""

    def doing(self, text: str) -> None:
        pass

    def more(self, steps: int) -> None:
        self.total += steps

    def step(self, text: str, left_s: float | None = None) -> None:
        self.lines.append(text)

    def note(self, text: str) -> None:
        self.lines.append(text)

    @contextlib.contextmanager
    def watch(self, _title: str, steps: int) -> Iterator[Told]:
        self.total += steps
        yield self


@pytest.fixture
def own_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the arm in this test's directory, so that its processes can be told apart."""
    copy = tmp_path / "arm_of_this_test.py"
    shutil.copy(ARM, copy)
    monkeypatch.setattr(sys.modules[__name__], "COMMAND", [sys.executable, "-I", "-S", str(copy)])
    return copy


def processes_of(arm: Path) -> list[int]:
    every = psutil.process_iter(["cmdline"])
    return [process.pid for process in every if str(arm) in (process.info["cmdline"] or [])]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(scope="session", autouse=True)
def own_salt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's own configuration stays out of the tests; one machine id for all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(autouse=True)
def own_calibrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a test see the user's calibrations."""
    monkeypatch.setenv("KVBENCH_DATA", str(tmp_path / "data"))


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def write_suite(
    directory: Path,
    arms: dict[str, dict[str, Any]],
    head: str = "",
    tables: str = "",
    generate: int = 4,
    name: str = "syn",
) -> str:
    """A suite file whose arms are synthetic; the first arm is the baseline."""
    lines = [
        "schema = 1",
        f'name = "{name}"',
        f'baseline = "{next(iter(arms))}"',
        'model = "none"',
        head if "blocks" in head or "looks" in head else f"blocks = 2\n{head}",
        f'[workload]\nhistory = "seeded"\nprompt_tokens = 8\ngenerate = {generate}\nwarmup = 1',
        "[environment]\nother_cores = 1e6\nsteal = 1.0" if "[environment]" not in tables else "",
        tables,
    ]
    for arm, settings in arms.items():
        lines.append(
            f'[[arms]]\nname = "{arm}"\nengine = "program"\ncommand = {toml(COMMAND)}\n'
            f"settings = {toml(settings)}"
        )
    path = directory / f"{name}.toml"
    path.write_text("\n".join(lines) + "\n")
    return str(path)
