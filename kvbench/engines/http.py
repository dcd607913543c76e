"""A small asyncio HTTP/1.1 client for engines' servers: JSON requests and server-sent events.

It exists for its cost: the load generator shares a machine with what it measures. httptools (a C
parser) under one asyncio protocol takes a small fraction of a general client's time per
request; ``docs/LOG.md`` has the figures. Arrival times are taken as the bytes arrive.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import time
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httptools
import msgspec

from kvbench.engines.urls import Target, redact_url
from kvbench.errors import UsageError

T = TypeVar("T")

MAX_BODY = 64 << 20
"""Bytes of one response; a server that sends more is in error."""
CA_VARIABLE = "SSL_CERT_FILE"
"""Names a file of certificates in PEM that servers may be verified by; OpenSSL's own variable."""


class HttpFailure(Exception):
    """A request that got no usable answer; ``kind``: connect, timeout, closed, status, body."""

    def __init__(self, kind: str, message: str, status: int = 0) -> None:
        self.kind, self.status = kind, status
        super().__init__(message)


@dataclass(slots=True)
class Event:
    """One server-sent event: its data, and when its last byte arrived (``time.monotonic``)."""

    at: float
    data: bytes


@dataclass(slots=True)
class Response:
    """A whole answer. ``events`` instead of ``body`` where the server streams."""

    status: int
    body: bytes
    events: list[Event]
    sent_at: float
    done_at: float
    headers: dict[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        """The body as plain data. Raises HttpFailure("body")."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError as error:
            raise HttpFailure("body", f"the answer is not JSON: {error}", self.status) from None


class _Connection(asyncio.Protocol):
    """One connection, one request at a time; httptools calls the ``on_`` methods."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.reusable = False
        self._waiter: asyncio.Future[None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._size = 0
        self._events: list[Event] = []
        self._streams = False
        self._now = 0.0
        self._status = 0
        self.answered = False
        self.reusable = False

    async def exchange(self, request: bytes, timeout_s: float) -> Response:
        """Send ``request``, wait for the whole answer. Raises HttpFailure."""
        assert self.transport is not None
        self._reset()
        if self.transport.is_closing():
            raise HttpFailure("closed", "the server closed the connection")
        self._waiter = asyncio.get_running_loop().create_future()
        sent = time.monotonic()
        self.transport.write(request)
        try:
            async with asyncio.timeout(timeout_s):
                await self._waiter
        except TimeoutError:
            self.transport.abort()
            raise HttpFailure("timeout", f"no complete answer within {timeout_s:g} s") from None
        except asyncio.CancelledError:
            self.transport.abort()
            raise
        return Response(
            self._status, bytes(self._body), self._events, sent, self._now, self._headers
        )

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._now = time.monotonic()
        self.answered = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail("body", f"not an HTTP answer: {error}")

    def eof_received(self) -> bool:
        self._until_close_ends()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._until_close_ends()
        self._fail("closed", "the server closed the connection before its answer was complete")

    def _until_close_ends(self) -> None:
        """A body without length or chunks ends with the connection."""
        framed = "content-length" in self._headers or "transfer-encoding" in self._headers
        if self._status and not framed:
            self._finish()

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._streams = self._headers.get("content-type", "").startswith("text/event-stream")

    def on_body(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_BODY:
            self._fail("body", f"the answer is longer than {MAX_BODY} bytes")
            return
        if self._streams and not self._body and data.startswith(b"data: "):
            event, end, rest = data[6:].partition(b"\n\n")
            if end and not rest and b"\n" not in event:  # the usual case, one event a segment
                self._events.append(Event(self._now, event))
                return
        self._body += data
        if self._streams:
            self._split_events()

    def on_message_complete(self) -> None:
        self.reusable = self._parser.should_keep_alive()
        self._finish()

    def _split_events(self) -> None:
        if b"\r" in self._body:
            self._body = self._body.replace(b"\r\n", b"\n")
        *events, rest = self._body.split(b"\n\n")
        for event in events:
            lines = event.split(b"\n")
            data = [line[5:].lstrip(b" ") for line in lines if line.startswith(b"data:")]
            if data:
                self._events.append(Event(self._now, bytes(b"\n".join(data))))
        self._body = bytearray(rest)

    def _finish(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, kind: str, message: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(HttpFailure(kind, message, self._status))
            if self.transport is not None:
                self.transport.abort()


class Client:
    """Requests to one server over a pool of kept-alive connections. Use inside one event loop."""

    def __init__(
        self, target: Target, *, headers: Mapping[str, str] | None = None, timeout_s: float = 600.0
    ) -> None:
        self.target = target
        self.timeout_s = timeout_s
        self._idle: list[_Connection] = []
        self._tls = _tls_context() if target.tls else None
        lines = {"Host": target.authority, "Accept": "application/json, text/event-stream"}
        self._head = "".join(f"{k}: {v}\r\n" for k, v in (lines | dict(headers or {})).items())

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            transport = self._idle.pop().transport
            if transport is not None:
                transport.abort()

    async def get(self, path: str, *, timeout_s: float | None = None) -> Response:
        """GET; any status is returned. Raises HttpFailure for a transport failure."""
        head = f"GET {self.target.prefix}{path} HTTP/1.1\r\n{self._head}\r\n"
        return await self._send(head, b"", timeout_s)

    async def get_json(self, path: str, *, timeout_s: float | None = None) -> Any:
        """GET, as plain data. Raises HttpFailure, also for any status but 200."""
        response = await self.get(path, timeout_s=timeout_s)
        if response.status != 200:
            raise HttpFailure("status", _refusal(response), response.status)
        return response.json()

    async def post(self, path: str, body: object, *, timeout_s: float | None = None) -> Response:
        """POST ``body`` as JSON. Raises HttpFailure, also for any status but 200."""
        data = msgspec.json.encode(body)
        head = (
            f"POST {self.target.prefix}{path} HTTP/1.1\r\n{self._head}"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        response = await self._send(head, data, timeout_s)
        if response.status != 200:
            raise HttpFailure("status", _refusal(response), response.status)
        return response

    async def _send(self, head: str, body: bytes, timeout_s: float | None) -> Response:
        timeout = self.timeout_s if timeout_s is None else timeout_s
        request = head.encode("latin-1") + body
        while self._idle:
            connection = self._idle.pop()
            try:
                return await self._exchange(connection, request, timeout)
            except HttpFailure as failure:
                if failure.kind != "closed" or connection.answered:
                    raise
                # The server had closed the idle connection: it never read the request.
        return await self._exchange(await self._connect(timeout), request, timeout)

    async def _exchange(
        self, connection: _Connection, request: bytes, timeout_s: float
    ) -> Response:
        response = await connection.exchange(request, timeout_s)
        if connection.reusable:
            self._idle.append(connection)
        elif connection.transport is not None:
            connection.transport.abort()
        return response

    async def _connect(self, timeout_s: float) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(min(timeout_s, 10.0)):
                _, connection = await loop.create_connection(
                    _Connection, self.target.host, self.target.port, ssl=self._tls
                )
        except TimeoutError:
            raise HttpFailure("connect", f"{self.target.authority} does not answer") from None
        except ssl.SSLCertVerificationError as error:
            raise HttpFailure(
                "connect",
                f"{self.target.authority}: its certificate is not accepted: "
                f"{error.verify_message}; {CA_VARIABLE} names a file of further authorities",
            ) from None
        except ssl.SSLError as error:
            reason = (error.reason or str(error)).replace("_", " ").lower()
            raise HttpFailure("connect", f"{self.target.authority}: no TLS: {reason}") from None
        except OSError as error:
            raise HttpFailure("connect", f"{self.target.authority}: {_reason(error)}") from None
        return connection


def _reason(error: OSError) -> str:
    """The system's words. A name with several addresses brings one error for all of them."""
    if isinstance(error, socket.gaierror):  # its numbers are not the system's
        return str(error.strerror)
    several = re.search(r"\[Errno (\d+)\]", str(error))
    number = error.errno or (int(several[1]) if several else 0)
    return os.strerror(number) if number else str(error)


def _tls_context() -> ssl.SSLContext:
    """Certificates are always verified. Raises UsageError for an unusable ``SSL_CERT_FILE``.

    OpenSSL itself passes over a file that it cannot read.
    """
    context = ssl.create_default_context()
    given = os.environ.get(CA_VARIABLE)
    if given:
        try:
            context.load_verify_locations(given)
        except ssl.SSLError:
            raise UsageError(f"{CA_VARIABLE}: {given}: no certificates in PEM") from None
        except OSError as error:
            raise UsageError(f"{CA_VARIABLE}: {given}: {error.strerror}") from None
    return context


def _refusal(response: Response) -> str:
    """One bounded line out of an error answer, whichever shape it has."""
    text = response.body.decode(errors="replace")
    try:
        found = msgspec.json.decode(response.body)
        found = found.get("error", found) if isinstance(found, dict) else found
        text = found.get("message", text) if isinstance(found, dict) else str(found)
    except msgspec.DecodeError:
        pass
    words = " ".join(str(text).split())[:300]
    elsewhere = response.headers.get("location", "")
    if elsewhere and 300 <= response.status < 400:  # not followed: what is measured must be named
        words = f"it points to {redact_url(elsewhere)[:300]}"
    return f"the server answered {response.status}" + (f": {words}" if words else "")


async def together(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run ``jobs`` concurrently; their results in order. The first failure cancels the rest."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
