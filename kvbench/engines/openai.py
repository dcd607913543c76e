"""Arm: any OpenAI-compatible server, by URL, streamed (``python -m`` runs it)."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from typing import Annotated, Any, Literal

import msgspec

from kvbench.engines import chat, served
from kvbench.engines.http import Client, HttpFailure, together
from kvbench.engines.protocol import PROTOCOL, ArmHello, Prepare, Ready, Reply, Run, Task
from kvbench.engines.serve import EngineFailure, refuse_options, serve
from kvbench.engines.settings import parse_settings
from kvbench.engines.urls import Target, api_headers, redacted
from kvbench.errors import SettingError

CAPABILITIES = ["text", "parallel"]
VERSION_PATHS = (("/version", "version"), ("/get_server_info", "version"), ("/props", "build_info"))
"""Where vLLM, SGLang and llama-server say what they are; first that answers."""
NONCE_DIGITS = 12


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[arms.settings]`` of engine ``openai``."""

    url: str
    """Up to, not including, ``/v1``."""
    model: str = ""
    """The server's name for it; default: the only one that ``/v1/models`` lists."""
    endpoint: Literal["completions", "chat"] = "completions"
    version: str = ""
    """For a server that does not say which version it is: yours to state, it is recorded."""
    api_key_env: str | None = None
    api_key_file: str | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] = 2
    """Candidates asked for in gate runs; 0 for servers that refuse logprobs."""
    ignore_eos: bool = True
    """Sent as ``ignore_eos``, an extension of most servers; without it outputs may be short."""
    extra_body: dict[str, Any] = {}
    """Further request fields, sent as they are."""
    nonce: bool = True
    """Timed runs get a prefix that no earlier run had, so that no cache can serve them."""
    flush: str = ""
    """Path POSTed before each task, e.g. ``/reset_prefix_cache``."""
    reuse_declared: bool = False
    request_s: float = 3600.0


class OpenAI:
    """The adapter. Nothing is started: the server runs already, here or elsewhere."""

    def __init__(self) -> None:
        self._settings = Settings(url="http://127.0.0.1")
        self._target = Target("127.0.0.1", 80, False, "")
        self._headers: dict[str, str] = {}
        self._model = ""

    def hello(self) -> ArmHello:
        """The server says which version it is once its URL is known."""
        return ArmHello(protocol=PROTOCOL, name="openai", version="", capabilities=CAPABILITIES)

    def prepare(self, message: Prepare) -> Ready:
        """Find the server, its version and its model."""
        if "url" not in message.settings:
            raise SettingError("url", "", "http://HOST:PORT of the server", "engine openai")
        self._settings = s = parse_settings(message.settings, Settings, "openai")
        self._target = Target.parse(s.url, source="engine openai")
        keys = {"api_key_env": s.api_key_env, "api_key_file": s.api_key_file}
        self._headers = api_headers(keys, os.environ)
        return asyncio.run(self._ready())

    async def _ready(self) -> Ready:
        async with self._client() as client:
            said = await _version(client)
            self._model = self._settings.model or await self._only_model(client)
        version = said or self._settings.version
        if not version:
            paths = ", ".join(path for path, _ in VERSION_PATHS)
            raise EngineFailure(
                "no-version", f"the server gives no version ({paths}); state it as version = ..."
            )
        stated = [] if said else ["the version was stated in the suite, not reported by the server"]
        return Ready(
            version=version,
            effective={"model": self._model, "endpoint": self._settings.endpoint},
            notes=["attached to a running server", *stated],
        )

    async def _only_model(self, client: Client) -> str:
        try:
            listed = await client.get_json("/v1/models", timeout_s=30.0)
            names = [str(entry["id"]) for entry in listed["data"]]
        except HttpFailure as error:
            way_out = "" if error.status in (401, 403) else "; set model"
            raise EngineFailure("model", f"/v1/models: {self._scrub(error)}{way_out}") from None
        except (KeyError, TypeError):
            raise EngineFailure("model", "/v1/models lists no models; set model") from None
        if len(names) != 1:
            raise EngineFailure("model", f"the server has {', '.join(names) or 'none'}; set model")
        return names[0]

    def _client(self) -> Client:
        return Client(self._target, headers=self._headers, timeout_s=self._settings.request_s)

    def run(self, message: Run) -> Reply:
        """All prompts at once, one stream each."""
        task = message.task
        refuse_options(task, "openai")
        if task.teacher is not None:
            raise EngineFailure("teacher", "an OpenAI-compatible server cannot be forced")
        return asyncio.run(self._run(message.id, task))

    async def _run(self, run_id: int, task: Task) -> Reply:
        s = self._settings
        fresh = s.nonce and not task.detail
        prompts = [_fresh(prompt) for prompt in task.prompts] if fresh else task.prompts
        async with self._client() as client:
            if s.flush:
                await self._flush(client)
            if task.warmup:
                warm = [_fresh(prompt) for prompt in task.prompts]
                await together(
                    self._ask(client, i, p, task.warmup, nonce=True) for i, p in enumerate(warm)
                )
            streams = await together(
                self._ask(
                    client,
                    i,
                    p,
                    served.asked(task.generate),
                    nonce=fresh,
                    logprobs=s.logprobs if task.detail else 0,
                )
                for i, p in enumerate(prompts)
            )
        return served.reply(run_id, streams, detail=task.detail)

    async def _flush(self, client: Client) -> None:
        try:
            await client.post(self._settings.flush, {})
        except HttpFailure as error:
            raise EngineFailure("flush", f"{self._settings.flush}: {self._scrub(error)}") from None

    async def _ask(
        self,
        client: Client,
        number: int,
        prompt: list[int] | str,
        generate: int,
        *,
        nonce: bool,
        logprobs: int = 0,
    ) -> served.Stream:
        s = self._settings
        body = chat.request(
            s.endpoint, self._model, prompt, generate, logprobs=logprobs, ignore_eos=s.ignore_eos
        )
        path = "/v1/completions" if s.endpoint == "completions" else "/v1/chat/completions"
        try:
            stream = chat.parse(await client.post(path, body | s.extra_body))
        except HttpFailure as error:
            raise EngineFailure("request", f"sequence {number}: {self._scrub(error)}") from None
        cached = stream.numbers.get("cached_tokens", 0.0)
        if cached > (_nonce_tokens(prompt) if nonce else 0) and not s.reuse_declared:
            raise EngineFailure(
                "reused-prompt",
                f"sequence {number}: {cached:.0f} of its tokens came from a cache; turn prefix "
                "caching off (llama.cpp: extra_body = { cache_prompt = false }), set flush, "
                "or declare it",
            )
        return stream

    def _scrub(self, error: Exception) -> str:
        return redacted(str(error), self._headers)

    def close(self) -> None:
        """Nothing is held between tasks."""


async def _version(client: Client) -> str:
    for path, field in VERSION_PATHS:
        try:
            found = await client.get_json(path, timeout_s=30.0)
        except HttpFailure as error:
            if error.kind in ("connect", "timeout"):
                raise EngineFailure("request", str(error)) from None
            continue
        if isinstance(found, dict) and found.get(field):
            return str(found[field])
    return ""


def _fresh(prompt: list[int] | str) -> list[int] | str:
    """The prompt behind a nonce of always as many tokens: digits one by one, which no tokenizer
    joins; ids keep their number, the first ones give way."""
    if isinstance(prompt, str):
        digits = " ".join(secrets.choice("0123456789") for _ in range(NONCE_DIGITS))
        return f"{digits}\n{prompt}"
    lead = _nonce_tokens(prompt)
    return [secrets.choice(prompt) for _ in range(lead)] + prompt[lead:]


def _nonce_tokens(prompt: list[int] | str) -> int:
    """How many tokens of a fresh prompt are the nonce's, at least. A server that keeps prefixes
    token by token may know the first of them, and one that marks the beginning, by chance."""
    return NONCE_DIGITS if isinstance(prompt, str) else min(4, len(prompt) - 1)


if __name__ == "__main__":
    sys.exit(serve(OpenAI()))
