"""METHOD, environment: revision, dirtiness and digest of each arm's program, as it is now."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kvbench.engines.arm import Arm
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
