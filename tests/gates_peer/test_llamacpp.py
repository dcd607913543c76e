"""The proof that the decoder is right: its judgement, and (marked peer) the proof itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gates.peer.llamacpp import GENERATE, compare_forced, compare_free
from gates.registry import GateOptions, load
from tests.peers.arms import NO_LLAMA

ROOT = Path(__file__).parents[2]
Top2 = tuple[int, float, int, float]


def same(n: int) -> tuple[list[list[Top2]], list[list[dict[int, float]]]]:
    """``n`` positions at which both choose token 7."""
    mine: list[Top2] = [(7, 9.0, 8, 8.9)] * n
    return [mine], [[{7: -0.1, 8: -0.2, 9: -3.0} for _ in range(n)]]


def test_equal_choices_pass() -> None:
    check = compare_forced(*same(600), seconds=1.0)
    assert check.outcome == "passed" and "0 of 600" in check.message


@pytest.mark.parametrize(("n_differing", "outcome"), [(18, "passed"), (19, "mismatch")])
def test_three_percent_may_differ(n_differing: int, outcome: str) -> None:
    mine, theirs = same(600)
    for i in range(n_differing):
        theirs[0][i * 31] = {8: -0.1, 7: -0.3}
    check = compare_forced(mine, theirs, seconds=1.0)
    assert check.outcome == outcome and len(check.details["differing"]) == n_differing
    assert check.details["differing"][0]["margin"] == 0.2


@pytest.mark.parametrize(
    ("candidates", "gap", "margin"),
    [
        ({8: -0.1, 7: -0.59}, 0.1, 0.49),  # the peer's view is the wider one
        ({8: -0.1, 7: -0.61}, 0.1, 0.51),
        ({8: -0.1, 7: -0.2}, 0.6, 0.6),  # the decoder's own view is
        ({8: -0.1, 9: -0.2}, 0.1, 0.6),  # its choice is not even a candidate
    ],
)
def test_each_difference_must_be_close(
    candidates: dict[int, float], gap: float, margin: float
) -> None:
    mine, theirs = same(600)
    mine[0][5], theirs[0][5] = (7, 9.0, 8, 9.0 - gap), candidates
    check = compare_forced(mine, theirs, seconds=1.0)
    (difference,) = check.details["differing"]
    assert difference["margin"] == pytest.approx(margin)
    assert check.outcome == ("passed" if margin <= 0.5 else "mismatch")


def test_few_positions_have_no_share() -> None:
    mine, theirs = same(16)
    theirs[0][3] = {8: -0.1, 7: -0.3}
    check = compare_forced(mine, theirs, seconds=1.0)
    assert check.outcome == "passed" and "too few to judge" in check.message


def test_free_running_must_be_equal_throughout() -> None:
    mine, _ = same(4)
    tokens = [[7, 7, 7, 7]]
    assert compare_free(tokens, mine, tokens, 1.0).outcome == "passed"
    check = compare_free(tokens, mine, [[7, 7, 8, 7]], 1.0)
    assert check.outcome == "mismatch" and "3 of 4" in check.message
    assert check.divergence is not None
    assert (check.divergence.sequence, check.divergence.position) == (0, 2)


def test_without_the_peer_it_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys, importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'xllamacpp' else real(n, *a)\n"
        "from kvbench.cli import main; sys.exit(main(['gate', 'llamacpp']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=dict(os.environ, KVBENCH_CACHE=str(tmp_path)),
    )
    assert done.returncode == 2 and "kvbench[peer]" in done.stderr


@pytest.mark.peer
@pytest.mark.model
def test_the_decoder_is_llamacpps() -> None:
    """512 of 512 greedy tokens in float32; <= 3% of choices differ on the file, each closely."""
    pytest.importorskip("xllamacpp", reason=NO_LLAMA)
    report = load("llamacpp")(GateOptions())
    assert report.outcome == "passed", report.message
    details = {check.name: check.details for check in report.checks}
    assert details["greedy, float32"] == {"equal": 8 * GENERATE, "total": 8 * GENERATE}


@pytest.mark.peer
@pytest.mark.model
def test_a_fault_in_the_decoder_is_caught() -> None:
    """Faults are switches of the decoder; one that reaches the tokens must fail this gate too."""
    pytest.importorskip("xllamacpp", reason=NO_LLAMA)
    report = load("llamacpp")(GateOptions(quick=True, inject=("rotated_heads",)))
    assert report.outcome == "mismatch"
