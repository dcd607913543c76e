"""The HTTP client against a socket that can misbehave in every way."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.engines.http import Client, HttpFailure, Response
from kvbench.engines.urls import Target, api_headers, redact_url
from kvbench.errors import KvbenchError, SettingError


def ask(
    *answers: bytes | None, pieces: int = 0, requests: int = 1, timeout_s: float = 10.0
) -> list[Response]:
    """Answers in turn; None closes the connection. ``pieces`` cuts answers into so many bytes."""
    served = iter(answers)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(ConnectionError):
                while connection.recv(65536):
                    answer = next(served, None)
                    if answer is None:
                        break
                    step = pieces or len(answer) or 1
                    for start in range(0, len(answer), step):
                        connection.sendall(answer[start : start + step])
                    if b"close" in answer:
                        break

    async def main() -> list[Response]:
        port = listener.getsockname()[1]
        async with Client(Target("127.0.0.1", port, False, ""), timeout_s=timeout_s) as client:
            return [await client.get("/x") for _ in range(requests)]

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        return asyncio.run(main())
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def whole(body: bytes, extra: str = "") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


def stream(*events: bytes) -> bytes:
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    body = b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    return head + body + b"0\r\n\r\n"


@pytest.mark.parametrize("pieces", [0, 1, 7])
def test_whole_answers_however_they_are_cut(pieces: int) -> None:
    (response,) = ask(whole(b'{"a": 1}'), pieces=pieces)
    assert response.status == 200 and response.json() == {"a": 1}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.text(min_size=1, max_size=9).filter(
            lambda t: "\r" not in t and "\n" not in t and t == t.lstrip()
        ),
        max_size=6,
    ),
    st.integers(0, 40),
)
def test_events_however_they_are_cut(texts: list[str], pieces: int) -> None:
    events = [f"data: {text}\n\n".encode() for text in texts]
    (response,) = ask(stream(*events), pieces=pieces)
    assert [event.data.decode() for event in response.events] == texts
    assert all(a.at <= b.at for a, b in zip(response.events, response.events[1:], strict=False))


def test_comments_crlf_and_many_data_lines() -> None:
    (response,) = ask(stream(b": ping\r\n\r\n", b"event: x\r\ndata: 1\r\ndata: 2\r\n\r\n"))
    assert [event.data for event in response.events] == [b"1\n2"]


def test_connections_are_kept_and_a_stale_one_is_replaced() -> None:
    assert len(ask(whole(b"1"), whole(b"2"), requests=2)) == 2
    stale = ask(whole(b"1"), None, whole(b"3"), requests=2)
    assert [response.body for response in stale] == [b"1", b"3"]


def test_a_body_that_ends_with_the_connection() -> None:
    (response,) = ask(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc")
    assert response.body == b"abc"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (None, "closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nConnection: close\r\n\r\nabc", "closed"),
        (stream(b"data: 1\n\n")[:-5] + b"\r\nclose", "body"),
        (b"SSH-2.0-x close\r\n", "body"),
        (b"", "timeout"),
    ],
)
def test_broken_answers_are_named(answer: bytes | None, kind: str) -> None:
    with pytest.raises(HttpFailure) as failure:
        ask(answer, timeout_s=0.3 if kind == "timeout" else 60.0)
    assert failure.value.kind == kind


def test_nobody_listens() -> None:
    async def main() -> None:
        async with Client(Target("127.0.0.1", 1, False, "")) as client:
            await client.get("/")

    with pytest.raises(HttpFailure, match="refused"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "words"),
    [("localhost", "Connection refused"), ("nobody.invalid", r"[Nn]ame|resolution")],
)
def test_a_name_that_leads_nowhere_is_in_the_systems_words(host: str, words: str) -> None:
    """Also a name with two addresses, which brings two errors; resolvers number theirs anew."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    async def main() -> None:
        async with Client(Target(host, port, False, "")) as client:
            await client.get("/x")

    with pytest.raises(HttpFailure, match=words) as caught:
        asyncio.run(main())
    assert caught.value.kind == "connect" and "Errno" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            b"HTTP/1.1 302 X\r\nLocation: https://u:p@h/x?k=1\r\nContent-Length: 0\r\n\r\n",
            "https://h/x",
        ),
        (b"HTTP/1.1 502 X\r\nContent-Length: 0\r\n\r\n", "answered 502"),
        (b"HTTP/1.1 404 X\r\nContent-Length: 8\r\n\r\n<i>no\n\n<", "404: <i>no <"),
    ],
)
def test_any_status_but_200_is_a_failure_in_one_line(answer: bytes, words: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)

    async def main() -> None:
        port = listener.getsockname()[1]
        async with Client(Target("127.0.0.1", port, False, "")) as client:
            await client.get_json("/x")

    thread = threading.Thread(target=serve)
    thread.start()
    with listener, pytest.raises(HttpFailure) as caught:
        asyncio.run(main())
    thread.join(10)
    assert caught.value.kind == "status" and str(caught.value).endswith(words)
    assert "\n" not in str(caught.value)


def test_not_json_is_named() -> None:
    (response,) = ask(whole(b"<html>"))
    with pytest.raises(HttpFailure, match="not JSON"):
        response.json()


@pytest.mark.parametrize(
    "url",
    ["", "x", "ftp://h", "http://", "http://u:secret@h", "http://h?key=secret", "http://h:99999"],
)
def test_a_bad_url_is_refused_without_showing_secrets(url: str) -> None:
    """Keys come from the environment or a file, never from the suite, and are redacted."""
    with pytest.raises(SettingError) as error:
        Target.parse(url)
    assert "secret" not in str(error.value)
    assert "secret" not in redact_url(url)


def test_urls() -> None:
    assert Target.parse("https://h/base/") == Target("h", 443, True, "/base")
    assert Target.parse("http://[::1]:8080").authority == "[::1]:8080"


@pytest.mark.parametrize("url", ["http://h/v1", "http://h/v1/", "https://h/base/v1"])
def test_a_url_ends_before_its_v1(url: str) -> None:
    """The paths below it are added; twice, a server would only seem to have no models."""
    with pytest.raises(SettingError, match="not including, /v1"):
        Target.parse(url)


def test_api_keys(tmp_path: Path) -> None:
    assert api_headers({}, {}) == {}
    assert api_headers({"api_key_env": "K"}, {"K": "s\n"}) == {"Authorization": "Bearer s"}
    file = tmp_path / "key"
    file.write_text("t\n")
    assert api_headers({"api_key_file": str(file)}, {}) == {"Authorization": "Bearer t"}
    for bad in (
        {"api_key_env": "K"},
        {"api_key_file": "/no"},
        {"api_key_env": "K", "api_key_file": "x"},
    ):
        with pytest.raises(KvbenchError):
            api_headers(bad, {})
