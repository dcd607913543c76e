"""https to an engine's server: verified by the certificate that SSL_CERT_FILE names, or refused."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvbench.cli import main
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Reply, Task
from kvbench.engines.supervisor import Timeouts, run_once
from kvbench.records import Failure
from tests.peers.servers import running_stub

QUICK = Timeouts(hello=60, prepare=60, run=60, bye=10)
TASK = Task(prompts=["a question"], generate=4)


def certificate(folder: Path, name: str, subject: str = "IP:127.0.0.1") -> dict[str, str]:
    """A self-signed certificate for ``subject``, made now: paths of it and of its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl command to make a certificate with")
    made = {"certificate": str(folder / f"{name}.pem"), "key": str(folder / f"{name}.key")}
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj"
    command = [openssl, *words.split(), f"/CN={name}", "-addext", f"subjectAltName={subject}"]
    subprocess.run(
        [*command, "-out", made["certificate"], "-keyout", made["key"]],
        check=True,
        capture_output=True,
    )
    return made


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return certificate(tmp_path_factory.mktemp("own"), "own")


@pytest.fixture
def server(tmp_path: Path, own: dict[str, str]) -> Iterator[str]:
    with running_stub(tmp_path, dict(own)) as url:
        assert url.startswith("https://")
        yield url


def arm(url: str, **settings: Any) -> Arm:
    return Arm(name="o", engine="openai", settings={"url": url, "model": "m"} | settings)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_server_with_a_known_certificate_is_an_arm(
    server: str, own: dict[str, str], monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", own["certificate"])
    run = run_once(arm(server, endpoint=endpoint), TASK, QUICK)
    assert isinstance(run.outcome, Reply), run
    assert run.outcome.result.tokens == 4


def test_load_goes_over_tls_too(
    server: str,
    own: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", own["certificate"])
    given = ["--endpoint", "completions", "--model", "m", "--requests", "4", "--generate", "4"]
    assert main(["load", server, *given, "--concurrency", "2"]) == 0
    assert "FAILED" not in capsys.readouterr().out


def refused(run_url: str) -> str:
    outcome = run_once(arm(run_url), TASK, QUICK).outcome
    assert isinstance(outcome, Failure) and "\n" not in outcome.message
    return outcome.message


def test_an_unknown_certificate_is_one_line(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its authority is another one."""
    other = certificate(tmp_path, "other")
    monkeypatch.setenv("SSL_CERT_FILE", other["certificate"])
    said = refused(server)
    assert "its certificate is not accepted: self-signed certificate" in said
    assert "SSL_CERT_FILE names a file of further authorities" in said


def test_a_certificate_for_another_host_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = certificate(tmp_path, "elsewhere", "DNS:elsewhere.example")
    monkeypatch.setenv("SSL_CERT_FILE", other["certificate"])
    with running_stub(tmp_path, dict(other)) as url:
        assert "IP address mismatch, certificate is not valid for '127.0.0.1'" in refused(url)


def test_a_server_without_tls_is_one_line() -> None:
    """It answers in the clear."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        said = refused(f"https://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
    assert "no TLS: wrong version number" in said or "no TLS: record layer failure" in said


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file or directory"), ("x", "no certificates in PEM")]
)
def test_a_wrong_file_of_authorities_is_one_line(
    content: str | None,
    said: str,
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "authorities.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    assert f"{path}: {said}" in refused(server)
    assert main(["load", server, "--requests", "1", "--generate", "2", "--concurrency", "1"]) == 2
    err = capsys.readouterr().err
    assert said in err and len(err.strip().splitlines()) == 1
