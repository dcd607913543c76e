"""Arm: takes a stated time for each token and nothing else.

For checking the bench itself: a planted effect is known exactly, an A/A is one by construction.
Settings: ``token_s``, seconds slept for each token. Prompts and model are ignored.
"""

from __future__ import annotations

import sys
import time
from typing import Annotated

import msgspec

from kvbench.engines.protocol import PROTOCOL, ArmHello, Prepare, Ready, Reply, Run
from kvbench.engines.serve import serve
from kvbench.engines.settings import parse_settings
from kvbench.records import Result


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How slow it is."""

    token_s: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.002


class Synthetic:
    """See ``kvbench.engines.serve.Engine``."""

    def __init__(self) -> None:
        self._settings = Settings()

    def hello(self) -> ArmHello:
        """Its version is kvbench's."""
        import kvbench

        version = f"kvbench {kvbench.__version__}"
        return ArmHello(
            protocol=PROTOCOL, name="synthetic", version=version, capabilities=["tokens"]
        )

    def prepare(self, message: Prepare) -> Ready:
        """Validate the settings."""
        self._settings = parse_settings(message.settings, Settings, "synthetic")
        return Ready(effective=msgspec.to_builtins(self._settings))

    def run(self, message: Run) -> Reply:
        """Sleep; every token is 0."""
        task = message.task
        for _ in range(task.warmup):
            time.sleep(self._settings.token_s)
        started = time.monotonic()
        for _ in range(task.generate):
            time.sleep(self._settings.token_s)
        seconds = time.monotonic() - started
        tokens = [[0] * task.generate for _ in task.prompts]
        return Reply(
            id=message.id,
            result=Result(
                tokens=task.generate * len(task.prompts),
                decode_s=seconds,
                sequences=len(task.prompts),
            ),
            tokens=tokens if task.detail else None,
        )

    def close(self) -> None:
        """Nothing is held."""


if __name__ == "__main__":
    sys.exit(serve(Synthetic()))
