"""A server that an adapter starts: a free loopback port, waiting for health, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from kvbench.engines.http import Client, HttpFailure
from kvbench.engines.process import Tail
from kvbench.engines.serve import EngineFailure
from kvbench.engines.urls import Target

LOOPBACK = "127.0.0.1"
STOP_S = 10.0
_POLL_S = 0.05
_PORT_TRIES = 3
_STAMP = re.compile(r"^[\d.:]+ [DIWE] ")
"""llama.cpp's time and level before a message."""
_ERROR = re.compile(r"^[\d.:]+ E |\b[Ee]rror\b")


def free_port() -> int:
    """A port that was free a moment ago. Another program may still take it: see ``launch``."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """One running server. ``target`` is where it listens."""

    def __init__(
        self, command: Sequence[str], port: int, env: dict[str, str] | None = None
    ) -> None:
        self.command = list(command)
        self.target = Target(LOOPBACK, port, tls=False, prefix="")
        try:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=env,
            )
        except OSError as error:
            raise EngineFailure("start", f"{command[0]}: {error.strerror}") from None
        assert self._process.stdout is not None
        self._log = Tail(self._process.stdout, 64 << 10)

    @property
    def ended(self) -> bool:
        """Whether the server has exited."""
        return self._process.poll() is not None

    def wait_a_moment(self) -> None:
        """Give a server whose connection broke the time to be seen as ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)

    def wait_healthy(self, path: str, timeout_s: float) -> None:
        """Return once GET ``path`` answers 200. Raises EngineFailure in the server's words."""
        asyncio.run(self._wait_healthy(path, timeout_s))

    async def _wait_healthy(self, path: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            if self.ended:
                raise EngineFailure("start", f"the server {self.describe_end()}")
            async with Client(self.target, timeout_s=5.0) as client:
                try:
                    status = (await client.get(path)).status
                    seen = f"{path} answered {status}"
                    if status == 200 and not self.ended:
                        return
                except HttpFailure as failure:
                    seen = str(failure)
            if time.monotonic() > deadline:
                message = f"the server was not ready within {timeout_s:g} s: {seen}"
                raise EngineFailure("timeout", message)
            await asyncio.sleep(_POLL_S)

    def describe_end(self) -> str:
        """``exited with code 1: the first line that names an error``, or else its last line."""
        self._log.join(1.0)
        code = self._process.poll()
        how = (
            f"was killed by signal {-code}"
            if code is not None and code < 0
            else f"exited with code {code}"
        )
        lines = [line.strip() for line in self._log.text().splitlines() if line.strip()]
        cause = next((line for line in lines if _ERROR.search(line)), lines[-1] if lines else "")
        return f"{how}: {_STAMP.sub('', cause)[:300]}" if cause else how

    def log(self) -> str:
        """Its output, bounded."""
        return self._log.text()

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after a while."""
        if not self.ended:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.join(1.0)
        # For the record: the harness keeps an arm's stderr.
        sys.stderr.write(self._log.text())


def launch(
    command: Callable[[int], Sequence[str]],
    *,
    port: int | None,
    health: str,
    timeout_s: float,
    env: dict[str, str] | None = None,
) -> ServerProcess:
    """Start a server and wait until it is healthy.

    ``command`` gives the command line for a port. With ``port`` None a free one is chosen, and
    another one if the server could not bind it. Raises EngineFailure.
    """
    if port is not None:
        _refuse_if_taken(port)
    for attempt in range(_PORT_TRIES):
        chosen = port if port is not None else free_port()
        server = ServerProcess(command(chosen), chosen, env)
        try:
            server.wait_healthy(health, timeout_s)
        except EngineFailure as failure:
            server.stop()
            again = port is None and failure.kind == "start" and _taken(chosen)
            if not again or attempt == _PORT_TRIES - 1:
                raise
        except BaseException:
            server.stop()
            raise
        else:
            return server
    raise AssertionError("the loop returns or raises")


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


def _refuse_if_taken(port: int) -> None:
    """A server that answers on the port already would be measured in place of ours."""
    if _taken(port):
        raise EngineFailure("port", f"port {port} is in use; leave port out for a free one")


def clean_environment() -> dict[str, str]:
    """This process's environment without variables that configure llama.cpp behind the suite."""
    return {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
