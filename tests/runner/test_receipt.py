"""METHOD, environment: revision, dirtiness and digest of each arm's program, as it is now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvbench.engines.arm import Arm
from kvbench.environment.fingerprint import CHECKOUT
from kvbench.environment.privacy import scrub
from runner.receipt import before_start, changed


def arm(program: Path, **more: object) -> Arm:
    return Arm(name="a", engine="program", command=[str(program), "--x"], **more)  # type: ignore[arg-type]


def test_a_rebuilt_program_is_seen(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    one = before_start(arm(program))
    assert one == before_start(arm(program))
    program.write_text("#!/bin/sh\necho\n")
    two = before_start(arm(program))
    assert changed(one, two) == ["program_sha256"]
    assert before_start(arm(tmp_path / "none"))["program_sha256"] is None


def test_a_changed_file_of_the_command_is_seen(tmp_path: Path) -> None:
    """An interpreter stays what it is when the script it runs does not."""
    script, model = tmp_path / "arm.py", tmp_path / "model.bin"
    script.write_text("1")
    model.write_text("m")
    command = [sys.executable, "arm.py", f"--model={model}", "--depth", "2", "x" * 5000, "nul\0"]
    interpreted = Arm(name="a", engine="program", command=command, cwd=str(tmp_path))
    one = before_start(interpreted)
    assert [line.split()[0] for line in one["files"]] == ["arm.py", scrub(str(model), CHECKOUT)]
    for path in (script, model):
        path.write_text(path.read_text() + "2")
        two = before_start(interpreted)
        assert changed(one, two) == ["files"]
        one = two
    older = {name: value for name, value in one.items() if name != "files"}
    assert changed(older, one) == []


def test_of_a_large_file_the_ends_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.receipt.WHOLE_BYTES", 0)
    model = tmp_path / "model.bin"
    model.write_bytes(bytes(3 << 20))
    command = [sys.executable, str(model)]
    one = before_start(Arm(name="a", engine="program", command=command))
    assert f"{3 << 20} bytes, ends " in one["files"][0]
    with model.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    assert changed(one, before_start(Arm(name="a", engine="program", command=command))) == ["files"]


def test_a_relative_program_lies_in_the_arms_own_directory(tmp_path: Path) -> None:
    (tmp_path / "engine").write_text("#!/bin/sh\n")
    (tmp_path / "engine").chmod(0o755)
    found = before_start(Arm(name="a", engine="program", command=["./engine"], cwd=str(tmp_path)))
    assert found["program_sha256"] is not None


def test_the_programs_repository_is_found_with_or_without_cwd(tmp_path: Path) -> None:
    program = tmp_path / "build" / "engine"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        identity = ["-c", "user.name=n", "-c", "user.email=e"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)
    clean = before_start(arm(program))["revision"]
    assert clean is not None and len(clean) == 40
    (tmp_path / "source.c").write_text("int x;")
    for found in (before_start(arm(program)), before_start(arm(program, cwd=str(tmp_path)))):
        assert found["revision"].startswith(f"{clean}+dirty:")


def test_variables_are_digests(tmp_path: Path) -> None:
    found = before_start(arm(tmp_path / "x", env={"KEY": "value"}))
    assert set(found["variables"]) == {"KEY"} and "value" not in str(found["variables"])
    other = before_start(arm(tmp_path / "x", env={"KEY": "other"}))
    assert changed(found, other) == ["variables"]
