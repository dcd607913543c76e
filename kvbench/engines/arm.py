"""What an arm is to the harness: a name, a way to start its process, and its settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec

from kvbench.errors import SettingError

ENTRY_POINTS = "kvbench.engines"
"""Entry-point group for engines of other packages: name = module run with ``python -m``."""

REFERENCE = "reference"

BUILT_IN: dict[str, str] = {
    REFERENCE: "kvbench.engines.reference",
    "synthetic": "kvbench.engines.synthetic",
    "llama-server": "kvbench.engines.llama_server",
    "xllamacpp": "kvbench.engines.xllamacpp",
    "openai": "kvbench.engines.openai",
    "command": "kvbench.engines.command",
    "llama-bench": "kvbench.engines.llama_bench",
    "llama-batched-bench": "kvbench.engines.llama_batched_bench",
    "transformers": "kvbench.engines.transformers_arm",
    "vllm-bench": "kvbench.engines.vllm_bench",
}
"""Engines that ship with kvbench, each a module that speaks the arm protocol."""

PROGRAM = "program"
"""The engine of an arm whose ``command`` speaks the protocol itself."""

ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "BLIS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}
"""The reference decoder's arithmetic is fixed only with a fixed number of BLAS threads."""

_CLEARED = ("LLAMA_ARG_",)
"""Prefixes of variables that would change an engine behind the suite's back."""


class Arm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One side of a comparison. ``command`` is for ``engine = "program"`` only."""

    name: str
    engine: str = REFERENCE
    model: str = ""
    settings: dict[str, Any] = {}
    command: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None

    def argv(self) -> list[str]:
        """The command line of the arm's process. Raises SettingError for an unknown engine."""
        if self.engine == PROGRAM:
            if not self.command:
                raise SettingError(
                    "command", self.command, "a program and its arguments", self.name
                )
            return list(self.command)
        if self.command:
            raise SettingError("command", self.command, 'only with engine = "program"', self.name)
        return [sys.executable, "-P", "-m", engine_module(self.engine)]

    def environ(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The child's environment: the harness's own, less what would change an engine silently."""
        source = os.environ if base is None else base
        env = {k: v for k, v in source.items() if not k.startswith(_CLEARED)}
        if self.engine != PROGRAM:
            root = str(Path(__file__).resolve().parents[2])
            env["PYTHONPATH"] = os.pathsep.join(filter(None, (root, env.get("PYTHONPATH"))))
        if self.engine == REFERENCE:
            env |= ONE_THREAD
        return env | self.env


def engine_names() -> list[str]:
    """Every engine that can be named in a suite."""
    found = {point.name for point in entry_points(group=ENTRY_POINTS)}
    return sorted({*BUILT_IN, PROGRAM, *found})


def engine_module(name: str) -> str:
    """The module to run for an engine. Raises SettingError with the names there are."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    for point in entry_points(group=ENTRY_POINTS):
        if point.name == name:
            return point.value
    raise SettingError("engine", name, "one of " + ", ".join(engine_names()), "arm")
