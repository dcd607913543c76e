"""A guarded child process that is talked to in lines: bounded output, deadlines, sure cleanup."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

GUARD = Path(__file__).with_name("guard.py")
_CHUNK = 1 << 16


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much an arm may say before it is stopped."""

    line_bytes: int = 64 << 20
    total_bytes: int = 256 << 20
    stderr_bytes: int = 256 << 10
    """Kept of stderr: its beginning and its end, half each; the middle is dropped and counted."""


class Exit(msgspec.Struct, frozen=True):
    """How a process tree ended."""

    code: int | None
    """Exit code, negative for a signal, None where the process could not be waited for."""
    leftover: int = 0
    """Descendants that were still running when the tree was taken down."""
    cpu_s: float = 0.0
    max_rss_kib: int = 0
    start_error: str = ""

    def describe(self) -> str:
        """In words: ``exited with code 3``, ``was killed by signal 9``."""
        if self.start_error:
            return f"could not be started: {self.start_error}"
        if self.code is None:
            return "did not end"
        if self.code < 0:
            return f"was killed by signal {-self.code}"
        return f"exited with code {self.code}"


class OutputLimit(Exception):
    """The process wrote more than its limits allow."""


class LineTimeout(Exception):
    """No complete line arrived in time."""


class EndOfOutput(Exception):
    """The process closed its stdout."""


class Tail:
    """Drains a stream in a thread and keeps its first and last bytes."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._end = bytearray()
        self._dropped = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, args=(stream,), daemon=True)
        self._thread.start()

    def _drain(self, stream: IO[bytes]) -> None:
        with stream:
            while chunk := os.read(stream.fileno(), _CHUNK):
                with self._lock:
                    room = self._half - len(self._head)
                    self._head += chunk[:room]
                    self._end += chunk[room:] if room > 0 else chunk
                    extra = len(self._end) - self._half
                    if extra > 0:
                        del self._end[:extra]
                        self._dropped += extra

    def join(self, timeout: float) -> None:
        """Wait for the stream's end."""
        self._thread.join(timeout)

    def text(self) -> str:
        """What was kept, with a line that says how much was not."""
        with self._lock:
            gap = f"\n[... {self._dropped} bytes dropped ...]\n" if self._dropped else ""
            return self._head.decode(errors="replace") + gap + self._end.decode(errors="replace")


class LineProcess:
    """A child under the guard. Use as a context manager: leaving it leaves no process behind.

    Raises nothing when the command does not exist: the first read then ends, and ``exit`` says why.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.command = list(command)
        self.limits = limits or Limits()
        self.exit: Exit | None = None
        self._buffer = bytearray()
        self._total = 0
        self._scanned = 0
        self._lifeline, guard_end = socket.socketpair()
        with guard_end:
            guard = [sys.executable, "-I", "-S", str(GUARD), str(guard_end.fileno())]
            # A popen that fails (no memory, no processes left) leaves only the socket to close.
            try:
                self._guard = subprocess.Popen(
                    [*guard, *self.command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=dict(env),
                    cwd=cwd,
                    bufsize=0,
                    pass_fds=[guard_end.fileno()],
                    start_new_session=True,
                )
            except BaseException:
                self._lifeline.close()
                raise
        assert self._guard.stdin and self._guard.stdout and self._guard.stderr
        self._stdin, self._stdout = self._guard.stdin, self._guard.stdout
        os.set_blocking(self._stdin.fileno(), False)
        self._stderr = Tail(self._guard.stderr, self.limits.stderr_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def write_line(self, line: bytes, deadline: float) -> None:
        """Send one line by ``deadline`` (``time.monotonic``). Raises LineTimeout, EndOfOutput."""
        view = memoryview(line)
        while view:
            _, writable, _ = select.select([], [self._stdin], [], _until(deadline))
            if not writable:
                raise LineTimeout
            try:
                view = view[os.write(self._stdin.fileno(), view) :]
            except BrokenPipeError:
                raise EndOfOutput from None
            except BlockingIOError:
                continue

    def read_line(self, deadline: float) -> bytes:
        """The next line of stdout without its newline.

        Raises LineTimeout after ``deadline``, EndOfOutput at the end, OutputLimit.
        """
        while True:
            end = self._buffer.find(b"\n", self._scanned)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._scanned = 0
                return line
            self._scanned = len(self._buffer)
            self._fill(deadline)

    def _fill(self, deadline: float) -> None:
        readable, _, _ = select.select([self._stdout], [], [], _until(deadline))
        if not readable:
            raise LineTimeout
        chunk = os.read(self._stdout.fileno(), _CHUNK)
        if not chunk:
            raise EndOfOutput
        self._buffer += chunk
        self._total += len(chunk)
        if len(self._buffer) > self.limits.line_bytes:
            raise OutputLimit(f"a line of more than {self.limits.line_bytes} bytes")
        if self._total > self.limits.total_bytes:
            raise OutputLimit(f"more than {self.limits.total_bytes} bytes in all")

    def stderr(self) -> str:
        """What is kept of stderr so far."""
        return self._stderr.text()

    def close(self, patience_s: float = 0.0) -> Exit:
        """End the process tree; waits up to ``patience_s`` for it to end by itself first."""
        if self.exit is not None:
            return self.exit
        self._stdin.close()
        try:
            self._drain_until_ended(time.monotonic() + patience_s)
        finally:
            self._lifeline.shutdown(socket.SHUT_WR)
            # Longer than the guard's own two patiences together.
            self._lifeline.settimeout(15.0)
            report = _receive(self._lifeline)
            self._lifeline.close()
            self._stdout.close()
            self._end_guard()
            self._stderr.join(1.0)
            self.exit = _parse_exit(report)
        return self.exit

    def _drain_until_ended(self, deadline: float) -> None:
        """Discard what is still printed until the guard reports the end, or the deadline."""
        watched: list[IO[bytes] | socket.socket] = [self._lifeline, self._stdout]
        while True:
            ready, _, _ = select.select(watched, [], [], _until(deadline))
            if not ready or self._lifeline in ready:
                return
            if not os.read(self._stdout.fileno(), _CHUNK):
                watched.remove(self._stdout)

    def _end_guard(self) -> None:
        try:
            self._guard.wait(5.0)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()


def _until(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _receive(lifeline: socket.socket) -> bytes:
    """All that the guard reports until it goes or the socket's time-out passes."""
    received = b""
    try:
        while chunk := lifeline.recv(4096):
            received += chunk
    except (TimeoutError, ConnectionError):
        pass
    return received


def _parse_exit(report: bytes) -> Exit:
    facts: dict[str, object] = {}
    for line in report.splitlines():
        facts.update(json.loads(line))
    return msgspec.convert(
        {
            "code": facts.get("exit"),
            "leftover": facts.get("leftover", 0),
            "cpu_s": facts.get("cpu_s", 0.0),
            "max_rss_kib": facts.get("max_rss_kib", 0),
            "start_error": facts.get("error", ""),
        },
        Exit,
    )
