"""Issue 6: the composite action and the commands of docs/CI.md are parsed and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.runner.conftest import write_suite

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / ".github/actions/kvbench/action.yml"
DOCUMENT = (ROOT / "docs/CI.md").read_text()
INPUT = re.compile(r"\$\{\{ *inputs\.(\w+) *\}\}")
BASH = [shutil.which("bash") or "bash", "--noprofile", "--norc", "-eo", "pipefail"]
"""How a runner starts ``shell: bash``."""

NOT_SLOWER = {
    "a": {"spin": True, "delay_s": 0.006},
    "b": {"spin": True, "delay_s": 0.002},
}
"""CPU time is measured, so the verdict does not depend on what else runs."""


def action() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load(ACTION.read_text())
    return parsed


def step(name: str) -> dict[str, Any]:
    return next(each for each in action()["runs"]["steps"] if each["name"] == name)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCUMENT, flags=re.DOTALL)


class Runner:
    """What a runner gives a step: a scratch directory, files to append to, and a path."""

    def __init__(self, directory: Path) -> None:
        self.temp = directory / "temp"
        self.summary, self.path = directory / "summary.md", directory / "path"
        commands = directory / "bin"
        for folder in (self.temp, commands):
            folder.mkdir()
        command = commands / "kvbench"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvbench "$@"\n')
        command.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RUNNER_TEMP": str(self.temp),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_PATH": str(self.path),
        }

    def run(self, script: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*BASH, "-c", script],
            cwd=cwd,
            env={**self.environment, **env},
            capture_output=True,
            text=True,
        )

    def step(self, name: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        """Run one step of the action with its declared defaults and ``inputs``."""
        given = {key: value["default"] for key, value in action()["inputs"].items()} | inputs
        there = step(name)
        env = {key: INPUT.sub(lambda m: given[m[1]], v) for key, v in there["env"].items()}
        return self.run(there["run"], **env)


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_the_action_is_a_composite_action_whose_inputs_exist() -> None:
    parsed = action()
    assert parsed["runs"]["using"] == "composite" and parsed["name"] and parsed["description"]
    assert all(set(each) == {"description", "default"} for each in parsed["inputs"].values())
    assert set(INPUT.findall(ACTION.read_text())) == set(parsed["inputs"])
    for each in parsed["runs"]["steps"]:
        if "run" in each:
            assert each["shell"] == "bash" and "${{" not in each["run"]
            subprocess.run([*BASH, "-n", "-c", each["run"]], check=True)
        else:
            assert re.fullmatch(r"actions/[\w-]+@v\d+", each["uses"])


def test_the_installed_command_gets_onto_the_path(runner: Runner, tmp_path: Path) -> None:
    wheel = tmp_path / "example-1-py3-none-any.whl"
    about = "example-1.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("example.py", "def main(): print('here')\n")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: example\nVersion: 1\n")
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/entry_points.txt", "[console_scripts]\nkvbench = example:main\n")
        archive.writestr(f"{about}/RECORD", "")
    done = runner.step("Install", python=sys.executable, install=f"--no-index {wheel}")
    assert done.returncode == 0, done.stderr
    (folder,) = runner.path.read_text().split()
    said = subprocess.run([f"{folder}/kvbench"], capture_output=True, text=True, check=True)
    assert said.stdout == "here\n"


def test_gate_and_comparison_leave_their_outputs(runner: Runner, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, NOT_SLOWER, "blocks = 2")
    gated = runner.step("Gate", gates=suite)
    assert gated.returncode == 0, gated.stderr
    out = runner.temp / "kvbench-out"
    assert ElementTree.parse(out / "gate.xml").getroot().tag == "testsuites"
    done = runner.step("Compare", suite=suite, arguments="--delta 0.05")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^::notice title=kvbench syn", done.stdout, flags=re.MULTILINE)
    assert runner.summary.read_text().startswith("### kvbench")
    assert ElementTree.parse(out / "ab.xml").getroot().tag == "testsuites"
    (run,) = (out / "results").iterdir()
    assert (run / "report.html").is_file()
    verified = runner.run("kvbench verify temp/kvbench-out/evidence.kvbench.zip", cwd=tmp_path)
    assert verified.returncode == 0, verified.stderr


def test_a_wrong_arm_ends_the_job_with_the_code_for_it(runner: Runner, tmp_path: Path) -> None:
    suite = write_suite(tmp_path, {"a": {}, "b": {"token": 8}}, "blocks = 2")
    assert runner.step("Gate", gates=suite).returncode == 4
    done = runner.step("Compare", suite=suite)
    assert done.returncode == 4 and "::error title=kvbench syn" in done.stdout
    assert "INVALID" in runner.summary.read_text()


def test_an_input_never_becomes_code(runner: Runner, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    done = runner.step("Compare", suite=f"$(touch {trap}); `touch {trap}`")
    assert done.returncode == 2 and not trap.exists()


def test_the_documented_job_uses_the_action_as_it_is() -> None:
    (text,) = blocks("yaml")
    jobs = yaml.safe_load(text)["jobs"]
    steps = [each for job in jobs.values() for each in job["steps"]]
    (used,) = [each for each in steps if each["uses"] == "./.github/actions/kvbench"]
    assert set(used["with"]) <= set(action()["inputs"])


def test_the_documented_commands_run(runner: Runner, tmp_path: Path) -> None:
    """The block after "By hand:", on a small suite."""
    suite = write_suite(tmp_path, NOT_SLOWER, "blocks = 2")
    script = next(block for block in blocks("sh") if "kvbench bundle RUN" in block)
    script = script.replace("kvbench gate", f"kvbench gate {suite}")
    script = script.replace("ab main", f"ab {suite}")
    before, after = script.split("kvbench export", 1)
    script = f"{before}RUN=$(ls results)\nkvbench export{after}".replace(" RUN", ' "$RUN"')
    done = runner.run(script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {"gate.xml", "ab.xml", "ab.txt"} <= {path.name for path in tmp_path.iterdir()}
