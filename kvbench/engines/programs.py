"""Programs that an adapter runs to their end: their output, their version, their own digest."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvbench.engines import options
from kvbench.engines.serve import EngineFailure
from kvbench.engines.server_process import clean_environment

MAX_OUTPUT = 64 << 20


def find(given: list[str] | str, name: str = "program") -> list[str]:
    """The program's command line. Raises EngineFailure("start") if there is no such program."""
    program = [given] if isinstance(given, str) else list(given)
    if not program or shutil.which(program[0]) is None:
        raise EngineFailure("start", f"{name} {given!r} was not found; give a path or install it")
    return program


def run(words: Sequence[str], timeout_s: float) -> str:
    """What a program prints on stdout. Raises EngineFailure for anything but exit code 0."""
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            timeout=timeout_s,
            env=clean_environment(),
            check=False,
        )
    except OSError as error:
        raise EngineFailure("start", f"{words[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise EngineFailure("timeout", f"{words[0]} did not end in {timeout_s:g} s") from None
    if done.returncode != 0:
        raise EngineFailure("exit", f"{words[0]} exited with code {done.returncode}")
    if len(done.stdout) > MAX_OUTPUT:
        raise EngineFailure("output", f"{words[0]} printed more than {MAX_OUTPUT} bytes")
    return done.stdout.decode(errors="replace")


def version(program: Sequence[str]) -> str:
    """``--version`` in llama.cpp's form; else the binary's digest, which names it just as well."""
    found = re.search(r"version:\s*(.+)", options.ask(program, "--version", clean_environment()))
    return found[1].strip() if found else "sha256:" + receipt(program).get("program_sha256", "")


def receipt(program: Sequence[str]) -> dict[str, str]:
    """SHA-256 of the program's file."""
    path = shutil.which(program[0])
    if path is None:
        return {}
    with Path(path).open("rb") as file:
        return {"program_sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def json_lines(output: str) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines; other lines are logs. Raises EngineFailure("answer")."""
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                yield msgspec.json.decode(line.encode(), type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise EngineFailure("answer", f"not JSON ({error}): {line[:200]}") from None


def required(row: dict[str, Any], names: Sequence[str], program: str, version: str) -> None:
    """Raise EngineFailure("schema") naming the program's version for fields that are missing."""
    missing = [name for name in names if name not in row]
    if missing:
        raise EngineFailure("schema", f"{program} {version} gave no {', '.join(missing)}")
