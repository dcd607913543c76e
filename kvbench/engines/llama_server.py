"""Arm: llama.cpp's ``llama-server``, started here or attached to (``python -m`` runs it)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from kvbench.engines import completion, options, programs, served
from kvbench.engines.http import Client, HttpFailure, together
from kvbench.engines.models import model_file
from kvbench.engines.protocol import PROTOCOL, ArmHello, Prepare, Ready, Reply, Run, Task
from kvbench.engines.serve import EngineFailure, refuse_options, serve
from kvbench.engines.server_process import ServerProcess, clean_environment, launch
from kvbench.engines.settings import parse_settings
from kvbench.engines.urls import Target, api_headers, redacted

CAPABILITIES = ["tokens", "top2", "teacher", "text", "parallel", "logprobs"]
QUIET = (["--cache-ram", "0"], ["--no-cache-idle-slots"], ["-fit", "off"], ["--no-webui"])
"""Passed where the server knows them: prompts must not be restored from elsewhere (FORMATS)."""

OWN_OPTIONS = {
    "--host": "url",
    "--port": "port",
    "-m": "model",
    "-c": "context",
    "-np": "parallel",
    "-fa": "flash_attn",
    "--kv-unified": "unified",
    "--no-kv-unified": "unified",
    "-ngl": "gpu_layers",
    "-t": "threads",
}
"""Option -> the setting to use instead of ``args``; ``model`` is the suite's."""
LEFT_TO_ARGS = ("gpu_layers", "threads")
"""Settings without a default: as long as they are not set, ``args`` may have their option."""

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[arms.settings]`` of engine ``llama-server``."""

    program: list[str] | str = "llama-server"
    url: str = ""
    """Attach to a server that is running already; nothing is started then."""
    api_key_env: str | None = None
    api_key_file: str | None = None
    context: Positive = 4096
    """Tokens of context in all (``-c``), shared by the slots."""
    parallel: Positive = 1
    unified: bool = False
    flash_attn: Literal["on", "off", "auto"] = "off"
    gpu_layers: int | None = None
    threads: Positive | None = None
    args: list[str] = []
    """Further options, passed as they are; one that ``--help`` does not name stops the arm."""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None
    ready_s: float = 600.0
    request_s: float = 3600.0
    reuse_declared: bool = False
    """Declares that prompts may be served from a cache (the suite's ``cache_may_serve``)."""
    probabilities: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 2
    """``n_probs`` of gate runs. 0 leaves margins unavailable."""


class LlamaServer:
    """The adapter; ``program`` replaces the default one (the xllamacpp engine does that)."""

    def __init__(self, name: str = "llama-server", program: list[str] | None = None) -> None:
        self.name, self._program = name, program
        self._settings = Settings()
        self._server: ServerProcess | None = None
        self._target: Target | None = None
        self._headers: dict[str, str] = {}
        self._slots = 0

    def hello(self) -> ArmHello:
        """The version is known once the program is: it comes with ``ready``."""
        return ArmHello(protocol=PROTOCOL, name=self.name, version="", capabilities=CAPABILITIES)

    def prepare(self, message: Prepare) -> Ready:
        """Start the server or find the running one, and read what it really runs with."""
        self._settings = settings = parse_settings(message.settings, Settings, self.name)
        receipt: dict[str, str] = {}
        version = ""
        if settings.url:
            self._target = Target.parse(settings.url, source=f"engine {self.name}")
            keys = {"api_key_env": settings.api_key_env, "api_key_file": settings.api_key_file}
            self._headers = api_headers(keys, os.environ)
        else:
            version, receipt = self._start(message.model)
        return asyncio.run(self._ready(version, receipt))

    def _start(self, model: str) -> tuple[str, dict[str, str]]:
        program = self._command()
        env = clean_environment()
        known = options.probe(program, env)
        build = self._build_command(program, model_file(model, self.name), known)
        options.check_known(build(1)[len(program) :], known, program[0])
        self._server = launch(
            build,
            port=self._settings.port,
            health="/health",
            timeout_s=self._settings.ready_s,
            env=env,
        )
        self._target = self._server.target
        return programs.version(program), programs.receipt(program)

    def _command(self) -> list[str]:
        given = self._settings.program
        if self._program is not None and given == Settings().program:
            return self._program
        return programs.find(given)

    def _build_command(
        self, program: list[str], model: str, known: options.Known
    ) -> Callable[[int], list[str]]:
        """The command line as a function of the port; options given in ``args`` are not doubled."""
        s = self._settings
        given = options.given(s.args, known)
        for option, setting in OWN_OPTIONS.items():
            unset = setting in LEFT_TO_ARGS and getattr(s, setting) is None
            if option in given and not unset:
                message = f"args: {given[option]} has a setting of its own, {setting}; use that"
                raise EngineFailure("option", message)
        fixed = [
            ["-m", model],
            ["-c", str(s.context)],
            ["-np", str(s.parallel)],
            ["-fa", s.flash_attn],
            [_unified_option(s.unified, known)],
        ]
        if s.gpu_layers is not None:
            fixed.append(["-ngl", str(s.gpu_layers)])
        if s.threads is not None:
            fixed += [["-t", str(s.threads)], ["-tb", str(s.threads)]]
        fixed += [option for option in QUIET if option[0] in known]
        chosen = [word for option in fixed if option[0] not in given for word in option if word]

        def command(port: int) -> list[str]:
            return [*program, "--host", "127.0.0.1", "--port", str(port), *chosen, *s.args]

        return command

    async def _ready(self, version: str, receipt: dict[str, str]) -> Ready:
        async with self._client() as client:
            try:
                props = await client.get_json("/props", timeout_s=30.0)
            except HttpFailure as error:
                raise EngineFailure("props", f"/props: {self._why(error)}") from None
        if not isinstance(props, dict):
            raise EngineFailure("props", "/props is not an object")
        build = str(props.get("build_info") or "")
        if build:
            receipt["build_info"] = build
        defaults = props.get("default_generation_settings")
        slots = props.get("total_slots")
        each = defaults.get("n_ctx") if isinstance(defaults, dict) else None
        effective: dict[str, Any] = {"parallel": slots, "model": _file_name(props)}
        if isinstance(each, int) and isinstance(slots, int):
            effective["context"] = each if self._settings.unified else each * slots
        self._check_effective(effective, version or build)
        notes = ["attached to a running server"] if self._settings.url else []
        return Ready(version=version or build, receipt=receipt, effective=effective, notes=notes)

    def _check_effective(self, effective: dict[str, Any], version: str) -> None:
        """What was asked for against what the server says; attached servers are only reported."""
        s, slots = self._settings, effective["parallel"]
        if not isinstance(slots, int):
            raise EngineFailure("props", f"/props of {version!r} has no total_slots")
        self._slots = slots
        if s.url:
            return
        if slots != s.parallel:
            message = f"asked for {s.parallel} slots, the server ({version}) has {slots}"
            raise EngineFailure("effective", message)
        has = effective.get("context", s.context)
        if has < s.context // slots * slots:
            message = f"asked for a context of {s.context}, the server ({version}) has {has}"
            raise EngineFailure("effective", message)

    def _client(self) -> Client:
        assert self._target is not None
        return Client(self._target, headers=self._headers, timeout_s=self._settings.request_s)

    def run(self, message: Run) -> Reply:
        """All prompts at once, one slot each."""
        task = message.task
        refuse_options(task, self.name)
        if self._server is not None and self._server.ended:
            raise EngineFailure("server", f"the server {self._server.describe_end()}")
        if len(task.prompts) > self._slots:
            raise EngineFailure(
                "slots",
                f"{len(task.prompts)} sequences at once, the server has {self._slots} slots; "
                "the others would wait (set parallel)",
            )
        work = self._forced(message) if task.teacher is not None else self._decode(message)
        return asyncio.run(work)

    async def _decode(self, message: Run) -> Reply:
        task = message.task
        async with self._client() as client:
            if task.warmup:
                warm = [prompt[::-1] for prompt in task.prompts]
                await self._ask_all(client, warm, task.warmup, probabilities=0)
            n = self._settings.probabilities if task.detail else 0
            wanted = task.generate if n else served.asked(task.generate)
            answers = await self._ask_all(client, task.prompts, wanted, probabilities=n)
        return served.reply(
            message.id, [self._stream(a, task) for a in answers], detail=task.detail
        )

    async def _forced(self, message: Run) -> Reply:
        """What the server would choose at every position of the given tokens, one request each."""
        task = message.task
        assert task.teacher is not None
        streams: list[served.Stream] = []
        async with self._client() as client:
            for position in range(task.generate):
                prompts = [
                    [*_ids(prompt), *forced[:position]]
                    for prompt, forced in zip(task.prompts, task.teacher, strict=True)
                ]
                n = max(2, self._settings.probabilities)
                answers = await self._ask_all(client, prompts, 1, probabilities=n)
                step = [self._stream(answer, task) for answer in answers]
                streams = _joined(streams, step) if streams else step
        return served.reply(message.id, streams, detail=True)

    async def _ask_all(
        self,
        client: Client,
        prompts: Sequence[list[int] | str],
        generate: int,
        *,
        probabilities: int,
    ) -> list[completion.Completion]:
        return await together(
            self._ask(client, slot, prompt, generate, probabilities)
            for slot, prompt in enumerate(prompts)
        )

    async def _ask(
        self, client: Client, slot: int, prompt: list[int] | str, generate: int, probabilities: int
    ) -> completion.Completion:
        reuse = self._settings.reuse_declared
        body = completion.request(
            prompt, generate, slot=slot, probabilities=probabilities, cache_prompt=reuse
        )
        try:
            done = completion.parse(await client.post("/completion", body))
        except HttpFailure as error:
            raise EngineFailure("request", f"sequence {slot}: {self._why(error)}") from None
        if not reuse and (why := completion.reused(done, prompt)) is not None:
            raise EngineFailure("reused-prompt", f"sequence {slot}: {why}")
        if done.truncated:
            raise EngineFailure("truncated", f"sequence {slot}: the server cut its prompt")
        return done

    def _why(self, error: HttpFailure) -> str:
        if self._server is not None and error.kind in ("closed", "connect"):
            self._server.wait_a_moment()
            if self._server.ended:
                return f"{error}; the server {self._server.describe_end()}"
        return redacted(str(error), self._headers)

    def _stream(self, done: completion.Completion, task: Task) -> served.Stream:
        timings = done.timings
        assert timings is not None
        numbers: dict[str, float] = {}
        if timings.prompt_ms:
            numbers["prefill_tok_s"] = timings.prompt_n / timings.prompt_ms * 1e3
        if timings.predicted_ms:
            numbers["server_decode_tok_s"] = timings.predicted_n / timings.predicted_ms * 1e3
        if timings.draft_n:
            numbers["draft_accepted"] = (timings.draft_n_accepted or 0) / timings.draft_n
        return served.Stream(
            sent_at=done.sent_at,
            arrivals=done.arrivals,
            count=timings.predicted_n,
            text=done.text,
            stop=done.stop,
            tokens=done.tokens,
            top2=done.top2 if task.detail and self._settings.probabilities else None,
            logprobs=done.logprobs if task.detail and self._settings.probabilities > 2 else None,
            prompt_count=timings.prompt_n,
            numbers=numbers,
        )

    def close(self) -> None:
        """Stop the server if it is ours."""
        if self._server is not None:
            self._server.stop()


def _file_name(props: dict[str, Any]) -> str:
    return Path(str(props.get("model_path", ""))).name


def _joined(streams: list[served.Stream], step: list[served.Stream]) -> list[served.Stream]:
    for whole, part in zip(streams, step, strict=True):
        whole.arrivals += part.arrivals
        whole.count += part.count
        whole.text += part.text
        whole.stop = part.stop
        whole.tokens = (whole.tokens or []) + (part.tokens or [])
        whole.top2 = (whole.top2 or []) + (part.top2 or [])
        whole.logprobs = None if part.logprobs is None else (whole.logprobs or []) + part.logprobs
    return streams


def _ids(prompt: list[int] | str) -> list[int]:
    if isinstance(prompt, str):
        raise EngineFailure("teacher", "forced runs need prompts as token ids")
    return prompt


def _unified_option(unified: bool, known: options.Known) -> str:
    """Builds before the option existed had one cache layout only: then there is none to give."""
    option = "--kv-unified" if unified else "--no-kv-unified"
    if option in known or unified:
        return option
    return ""


if __name__ == "__main__":
    sys.exit(serve(LlamaServer()))
