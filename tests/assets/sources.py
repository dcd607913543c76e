"""Small distributions, and package indexes that serve them well, slowly or not at all."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kvbench.assets.catalogue import CATALOGUE, Asset

TEXTS = {"one.txt": b"first text\n", "two.txt": b"second text\n" * 500}

EVIL_SETUP = """
import os, pathlib
pathlib.Path(os.environ["EVIL_MARK"]).write_text("setup code ran")
from setuptools import setup
setup(name="samplesource", version="1.0")
"""


def make_wheel(directory: Path, padding: int = 0) -> Path:
    """A wheel ``sample-1.0`` with texts, code, a licence, and ``padding`` incompressible bytes."""
    path = directory / "sample-1.0-py3-none-any.whl"
    info = "sample-1.0.dist-info"
    files = {f"sample/data/{name}": content for name, content in TEXTS.items()}
    files["sample/__init__.py"] = b"raise SystemExit('never imported')\n"
    files[f"{info}/LICENSE"] = b"Free.\n"
    files[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: sample\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if padding:
        files["sample/data/big.txt"] = hashlib.shake_256(b"x").digest(padding)
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    files[f"{info}/RECORD"] = record.encode()
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    return path


def make_source(directory: Path) -> Path:
    """A source archive ``samplesource-1.0`` whose setup code leaves the mark ``$EVIL_MARK``."""
    path = directory / "samplesource-1.0.tar.gz"
    files = {f"samplesource-1.0/data/{name}": content for name, content in TEXTS.items()}
    files["samplesource-1.0/setup.py"] = EVIL_SETUP.encode()
    files["samplesource-1.0/COPYING"] = b"Free.\n"
    metadata = b"Metadata-Version: 1.0\nName: samplesource\nVersion: 1.0\n"
    files["samplesource-1.0/PKG-INFO"] = metadata
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def asset_of(archive: Path, **changes: object) -> Asset:
    """An asset of that file, with the right digest and size unless changed."""
    name = archive.name.partition("-")[0]
    source = archive.name.endswith(".tar.gz")
    facts: dict[str, object] = {
        "name": name,
        "kind": "text",
        "summary": "a sample",
        "package": name,
        "version": "1.0",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "size": archive.stat().st_size,
        "unpacked": archive.stat().st_size * 2,
        "licence": "MIT",
        "files": ("*/data/*.txt",),
        "licence_files": ("*/COPYING",) if source else ("*/LICENSE",),
        "source_only": source,
    }
    return Asset(**(facts | changes))  # type: ignore[arg-type]


def register(asset: Asset) -> None:
    """Put the asset into this process's catalogue."""
    assert isinstance(CATALOGUE, dict)
    CATALOGUE[asset.name] = asset


@dataclass
class Index:
    """A package index on this machine. ``pause_after`` bytes of a file it waits ``pause_s``."""

    url: str
    pause_after: int = 1 << 60
    pause_s: float = 0.0
    downloads: list[str] = field(default_factory=list)
    paused: threading.Event = field(default_factory=threading.Event)


@contextmanager
def index_of(archive: Path) -> Iterator[Index]:
    """Serve ``archive`` as the only file of the only project of a package index."""
    stop = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith(archive.name):
                self._send_file()
                return
            page = f'<html><body><a href="/files/{archive.name}">{archive.name}</a></body></html>'
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page.encode())

        def _send_file(self) -> None:
            index.downloads.append(self.path)
            content = archive.read_bytes()
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            try:
                self.wfile.write(content[: index.pause_after])
                self.wfile.flush()
                if len(content) > index.pause_after:
                    index.paused.set()
                    until = time.monotonic() + index.pause_s
                    while time.monotonic() < until and not stop.is_set():
                        time.sleep(0.02)
                    self.wfile.write(content[index.pause_after :])
            except (BrokenPipeError, ConnectionResetError):
                pass

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    index = Index(f"http://127.0.0.1:{server.server_port}/simple")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield index
    finally:
        stop.set()
        server.shutdown()
        thread.join()
        server.server_close()
