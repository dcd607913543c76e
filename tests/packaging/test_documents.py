"""Issue: a newcomer reads the README alone; what it names must exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from kvbench.cli.table import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "configs/README.md"]
WRITTEN_BY_COMMANDS = {"results/proof/"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert [link for link in links if not ((ROOT / name).parent / link).exists()] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh$(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`\n]+)`", text)
    lines = [line for block in blocks for line in block.splitlines()] + spans
    named = {m[1] for line in lines if (m := re.match(r"kvbench ([a-z]+)\b", line))}
    assert named <= set(COMMANDS)


def test_the_file_map_is_complete_and_true() -> None:
    """One line per room: what is mapped exists, and every room is mapped."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    mapped = re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE)
    missing = [path for path in mapped if not (ROOT / path).exists()]
    assert set(missing) <= WRITTEN_BY_COMMANDS
    rooms = {f"kvbench/{p.parent.name}/" for p in (ROOT / "kvbench").glob("*/__init__.py")}
    assert rooms | {"gates/", "runner/", "configs/", "tests/"} <= set(mapped)


def test_make_targets_of_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for name in DOCUMENTS[:2]:
        used = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / name).read_text(), re.MULTILINE))
        assert used <= targets


def test_the_opt_in_job_is_started_by_hand_and_runs_a_make_target() -> None:
    job = yaml.load((ROOT / ".github/workflows/optin.yml").read_text(), yaml.BaseLoader)
    assert set(job["on"]) == {"workflow_dispatch"}
    (script,) = [step["run"] for step in job["jobs"]["transformers"]["steps"] if "run" in step]
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{script.removeprefix('make ')}:", makefile, re.MULTILINE)
    wanted = re.findall(r"inputs\.(\w+)", (ROOT / ".github/workflows/optin.yml").read_text())
    assert set(wanted) == set(job["on"]["workflow_dispatch"]["inputs"])
