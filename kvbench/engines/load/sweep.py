"""Points of load one after another on one server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kvbench.engines.http import Client, HttpFailure
from kvbench.engines.load.drive import drive
from kvbench.engines.load.endpoints import ENDPOINTS
from kvbench.engines.load.spec import LoadSpec
from kvbench.engines.load.summary import LoadSummary, summarise
from kvbench.engines.urls import Target
from kvbench.errors import ArmFailure, UsageError


def sweep(
    url: str,
    endpoint: str,
    specs: Sequence[LoadSpec],
    prompt: Callable[[int], str],
    *,
    model: str = "",
    headers: dict[str, str] | None = None,
) -> Iterator[LoadSummary]:
    """A summary per point. No two requests of a sweep have the same prompt.

    Raises ArmFailure if nobody answers at ``url``, UsageError if a model has to be named.
    """
    target, interface = Target.parse(url), ENDPOINTS[endpoint]
    name = model or asyncio.run(_model(target, headers or {}, needed=endpoint != "llama"))
    asked = 0
    for spec in specs:
        first = asked
        asked += spec.requests

        def body(number: int, first: int = first, spec: LoadSpec = spec) -> dict[str, Any]:
            return interface.body(name, prompt(first + number), spec.generate)

        driven = drive(target, interface.path, spec, body, interface.read, headers=headers)
        yield summarise(spec, driven)


async def _model(target: Target, headers: dict[str, str], *, needed: bool) -> str:
    """The only model that the server lists; also finds out that it is there at all."""
    async with Client(target, headers=headers, timeout_s=30.0) as client:
        try:
            response = await client.get("/v1/models")
            listed = response.json() if response.status == 200 else {}
        except HttpFailure as error:
            if error.kind == "body" and not needed:
                return ""
            where = "" if error.kind == "connect" else f"{target.authority}: "
            raise ArmFailure(f"{where}{error}") from None
    entries = listed.get("data") if isinstance(listed, dict) else None
    names = [str(e["id"]) for e in entries or () if isinstance(e, dict) and "id" in e]
    if len(names) == 1 or not needed:
        return names[0] if names else ""
    raise UsageError(f"the server lists {', '.join(names) or 'no model'}; name one with --model")
