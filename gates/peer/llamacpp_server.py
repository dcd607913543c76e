"""llama.cpp as a peer: its tokenizer and its greedy choices, through its own HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import kvbench
from kvbench.engines import completion
from kvbench.engines.http import Client, HttpFailure
from kvbench.engines.serve import EngineFailure
from kvbench.engines.server_process import clean_environment, launch
from kvbench.engines.xllamacpp import PROGRAM
from kvbench.errors import ArmFailure

CANDIDATES = 20
"""How many log probabilities are asked for: a token outside them is no near miss."""


def _environment() -> dict[str, str]:
    """Without settings of llama.cpp's own, and with this kvbench importable, installed or not."""
    environment = clean_environment()
    paths = [str(Path(kvbench.__file__).parents[1]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    return environment


class LlamaCpp:
    """A server on one model file, KV in float32, no flash attention. A context manager."""

    def __init__(self, model: Path, *, context: int, threads: int, timeout_s: float) -> None:
        fixed = ["-m", str(model), "-c", str(context), "-np", "1", "-fa", "off"]
        fixed += ["-ctk", "f32", "-ctv", "f32", "-t", str(threads), "-tb", str(threads)]
        fixed += ["--cache-ram", "0", "--no-cache-idle-slots", "-fit", "off"]
        self._timeout_s = timeout_s
        try:
            self._server = launch(
                lambda port: [*PROGRAM, "--port", str(port), *fixed],
                port=None,
                health="/health",
                timeout_s=timeout_s,
                env=_environment(),
            )
        except EngineFailure as failure:
            raise ArmFailure(f"llama.cpp: {failure}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Its log, which stop() hands on for an arm's record, has no reader here.
        with contextlib.redirect_stderr(io.StringIO()):
            self._server.stop()

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; control tokens are taken as text and nothing is added."""
        bodies = [{"content": t, "add_special": False, "parse_special": False} for t in texts]
        return [answer["tokens"] for answer in self._ask("/tokenize", bodies)]

    def greedy(self, prompt: Sequence[int], n: int) -> list[int]:
        """The ``n`` tokens that follow ``prompt``."""
        (answer,) = self._ask("/completion", [self._request(prompt, n, 2, reuse=False)])
        tokens: list[int] = answer["tokens"]
        return tokens

    def forced(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[dict[int, float]]:
        """At each position of ``tokens`` the best ids and their log probabilities, best first.

        One request a position, each continuing what the server already holds.
        """
        bodies = [
            self._request([*prompt, *tokens[:i]], 1, CANDIDATES, reuse=True)
            for i in range(len(tokens))
        ]
        found = []
        for answer in self._ask("/completion", bodies):
            (entry,) = answer["completion_probabilities"]
            found.append({c["id"]: c["logprob"] for c in entry["top_logprobs"]})
        return found

    @staticmethod
    def _request(prompt: Sequence[int], n: int, candidates: int, *, reuse: bool) -> dict[str, Any]:
        return completion.request(
            list(prompt), n, slot=0, probabilities=candidates, cache_prompt=reuse
        )

    def _ask(self, path: str, bodies: Sequence[dict[str, Any]]) -> list[Any]:
        """POST each body in turn over one connection."""

        async def ask() -> list[Any]:
            async with Client(self._server.target, timeout_s=self._timeout_s) as client:
                return [(await client.post(path, body)).json() for body in bodies]

        try:
            return asyncio.run(ask())
        except HttpFailure as failure:
            raise ArmFailure(f"llama.cpp: {path}: {failure}") from None
