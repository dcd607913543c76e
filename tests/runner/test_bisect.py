"""Issue 6, upkeep: bisect finds the planted revision, in a real repository with real arms."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.errors import UsageError
from runner.bisect import Judgement, bisect, first_bad
from tests.runner.conftest import ARM


@given(st.integers(1, 200), st.data())
def test_the_first_bad_one_is_found_in_few_steps(count: int, data: st.DataObject) -> None:
    answer = data.draw(st.integers(0, count - 1))
    unknown = data.draw(st.sets(st.integers(0, count - 1), max_size=2)) - {answer, answer - 1}
    unknown -= {count - 1}
    asked: list[int] = []

    def judge(index: int) -> tuple[Judgement, str]:
        asked.append(index)
        if index in unknown:
            return "unknown", "?"
        return ("bad", "x") if index >= answer else ("good", "")

    assert first_bad(count, judge) == (answer, "x")
    assert len(asked) <= count.bit_length() + 1 + 4 * len(unknown)


def test_what_cannot_be_answered_is_said() -> None:
    with pytest.raises(UsageError, match="the bad revision is good: same"):
        first_bad(3, lambda _: ("good", "same"))
    with pytest.raises(UsageError, match="the 2 revisions before the answer cannot be judged"):
        first_bad(3, lambda i: ("bad", "") if i == 2 else ("unknown", ""))


def git(place: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *words]
    done = subprocess.run(command, cwd=place, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Revisions 0..5 of an arm: 3 changes a token, 4 is slower."""
    place = tmp_path / "repository"
    place.mkdir()
    git(place, "init", "-q")
    for number in range(6):
        shutil.copy(ARM, place / "arm.py")
        text = (place / "arm.py").read_text()
        if number >= 3:
            text = text.replace('settings.get("token", 7)', 'settings.get("token", 8)')
        if number >= 4:
            text = text.replace('settings.get("delay_s", 0.001)', '0.02  # settings.get("delay_s")')
        (place / "arm.py").write_text(text + f"# {number}\n")
        git(place, "add", ".")
        git(place, "commit", "-qm", f"revision {number}")
        git(place, "tag", f"r{number}")
    suite = f"""
schema = 1
name = "bisected"
baseline = "a"
model = "none"
blocks = 2
[workload]
history = "seeded"
generate = 4
warmup = 1
[environment]
other_cores = 1e6
steal = 1.0
[[arms]]
name = "a"
engine = "program"
command = ["{sys.executable}", "-I", "-S", "arm.py"]
cwd = "{place}"
settings = {{ delay_s = 0.01, spin = true }}
[[arms]]
name = "b"
engine = "program"
command = ["true"]
"""
    (tmp_path / "s.toml").write_text(suite)
    return place


@pytest.mark.parametrize(
    ("by", "subject"),
    [
        ("bytes", "revision 3"),
        pytest.param("speed", "revision 4", marks=pytest.mark.long),
    ],
)
def test_the_planted_revision_is_found(
    repository: Path, tmp_path: Path, by: str, subject: str
) -> None:
    told: list[str] = []
    found = bisect(
        str(tmp_path / "s.toml"),
        "a",
        "r0",
        "r5",
        by="bytes" if by == "bytes" else "speed",
        build="touch built",
        root=tmp_path / "results",
        tell=told.append,
    )
    assert found.subject == subject and len(told) == len(found.tried) <= 4
    assert git(repository, "status", "--porcelain") == ""
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_refusals(repository: Path, tmp_path: Path) -> None:
    def refused(match: str, arm: str = "a", good: str = "r0", build: str | None = None) -> None:
        with pytest.raises(UsageError, match=match):
            bisect(
                str(tmp_path / "s.toml"),
                arm,
                good,
                "r5",
                by="bytes",
                build=build,
                root=tmp_path / "results",
                tell=print,
            )

    refused("'z' is no arm", arm="z")
    refused("arm 'b' has no cwd", arm="b")
    refused("git rev-list", good="nowhere")
    refused("there is no revision between", good="r5")
    refused("--build failed at r0", build="false")
    assert len(git(repository, "worktree", "list").splitlines()) == 1
