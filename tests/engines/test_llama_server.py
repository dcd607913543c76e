"""The llama-server adapter against a stub; ``test_real_llama_server.py`` has the real one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gates.exact import CellOptions, gate_cell
from kvbench.cli import main
from kvbench.engines import completion, options
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Reply, Task
from kvbench.engines.serve import EngineFailure
from kvbench.engines.supervisor import run_once
from tests.peers.arms import QUICK, failure, prompts
from tests.peers.servers import LLAMA, running_stub


def test_a_server_that_starts_slowly(tmp_path: Path) -> None:
    program = [sys.executable, LLAMA, "--slow", "1.0"]
    slow = Arm(name="a", engine="llama-server", model="m.gguf", settings={"program": program})
    task = Task(prompts=prompts(1), generate=4)
    assert isinstance(run_once(slow, task, QUICK).outcome, Reply)
    hasty = Arm(
        name="a",
        engine="llama-server",
        model="m.gguf",
        settings={"program": program, "ready_s": 0.2},
    )
    assert failure(run_once(hasty, task, QUICK)).kind == "timeout"


def test_attached(tmp_path: Path) -> None:
    with running_stub(tmp_path) as url:
        attached = Arm(name="a", engine="llama-server", settings={"url": url})
        run = run_once(attached, Task(prompts=prompts(3), generate=8, detail=False), QUICK)
    assert isinstance(run.outcome, Reply), run
    assert run.ready is not None and run.ready.version == "stub-1"
    assert run.outcome.result.tokens == 24


def test_more_sequences_than_slots_are_refused(tmp_path: Path) -> None:
    """The server would queue them, and a wait would be measured as if it were work."""
    with running_stub(tmp_path, {"slots": 2}) as url:
        attached = Arm(name="a", engine="llama-server", settings={"url": url})
        fault = failure(run_once(attached, Task(prompts=prompts(3), generate=8), QUICK))
    assert fault.kind == "slots" and "3 sequences" in fault.message and "2 slots" in fault.message


@pytest.mark.parametrize("engine", ["llama-server", "openai"])
def test_a_suite_of_conversations_for_a_server_is_refused_in_one_line(
    tmp_path: Path, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is run: the arm's rehearsal fails."""
    suite = tmp_path / "talk.toml"
    with running_stub(tmp_path) as url:
        settings = {"url": url} | ({"model": "m"} if engine == "openai" else {})
        given = ", ".join(f'{key} = "{value}"' for key, value in settings.items())
        arms = "".join(
            f'[[arms]]\nname = "{n}"\nengine = "{engine}"\nsettings = {{ {given} }}\n' for n in "ab"
        )
        suite.write_text(
            'schema = 1\nname = "talk"\nbaseline = "a"\nmodel = "synthetic:tiny"\n'
            'process = "attached"\n[workload]\nkind = "conversations"\nprompt_tokens = 2048\n'
            f"generate = 8\n{arms}"
        )
        assert main(["ab", str(suite), "--out", str(tmp_path / "out")]) != 0
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert "'conversation'" in line and "need the engine reference" in line


def test_an_attached_servers_key_is_sent_and_redacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "sesame-123")
    with running_stub(tmp_path, {"status": 401, "echo_key": True}) as url:
        settings = {"url": url, "api_key_env": "THE_KEY"}
        attached = Arm(name="a", engine="llama-server", settings=settings)
        run = run_once(attached, Task(prompts=prompts(1), generate=4), QUICK)
    fault = failure(run)
    assert "***" in fault.message and "sesame" not in fault.message + run.stderr


@pytest.mark.parametrize("planted", [{"cache_n": 3}])
def test_a_reused_prompt_voids_the_task(tmp_path: Path, planted: dict[str, Any]) -> None:
    with running_stub(tmp_path, planted) as url:
        settings = {"url": url}
        task = Task(prompts=prompts(1), generate=4)
        fault = failure(
            run_once(Arm(name="a", engine="llama-server", settings=settings), task, QUICK)
        )
        assert fault.kind == "reused-prompt" and "3 of its tokens" in fault.message
        declared = Arm(
            name="a", engine="llama-server", settings=settings | {"reuse_declared": True}
        )
        assert isinstance(run_once(declared, task, QUICK).outcome, Reply)


@pytest.mark.parametrize(
    ("planted", "kind", "words"),
    [
        ({"die_after": 3}, "request", "closed"),
        ({"status": 503}, "request", "planted refusal"),
    ],
)
def test_broken_answers(tmp_path: Path, planted: dict[str, Any], kind: str, words: str) -> None:
    with running_stub(tmp_path, planted) as url:
        attached = Arm(name="a", engine="llama-server", settings={"url": url})
        fault = failure(run_once(attached, Task(prompts=prompts(2), generate=8), QUICK))
    assert fault.kind == kind and words in fault.message


@pytest.mark.long
@pytest.mark.parametrize(
    ("sequence", "position"), [(0, 0), (63, 255), (17, 128), (40, 1), (5, 254)]
)
def test_a_one_token_change_in_64_x_256_is_found(
    tmp_path: Path, sequence: int, position: int
) -> None:
    """Issue number, through the whole gate: two servers, one token changed in one answer."""
    asked: list[list[int] | str] = [[number, number + 1, 7] for number in range(64)]
    planted = {"change_at": position, "change_if": str(asked[sequence])[:-1] + "]"}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with running_stub(tmp_path / "a") as good, running_stub(tmp_path / "b", planted) as bad:
        arms = [
            Arm(name=name, engine="llama-server", settings={"url": url, "probabilities": 0})
            for name, url in (("good", good), ("bad", bad))
        ]
        task = Task(name="t", prompts=asked, generate=256)
        report = gate_cell(arms[0], [arms[1]], [task], CellOptions(timeouts=QUICK))
    found = report.checks[-1].divergence
    assert report.outcome == "mismatch" and found is not None
    assert (found.sequence, found.position) == (sequence, position)


def test_known_options() -> None:
    text = """usage: llama-server [options]
-h,    --help, --usage                  print usage and exit; see --not-an-option
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        --text-in-the-description
  -t N, --threads=N   number
"""
    known = options.known_options(text)
    assert {"-h", "--help", "--usage", "-fa", "--flash-attn", "-no-kvu", "--threads"} <= set(known)
    assert "--not-an-option" not in known
    assert options.given(["--flash-attn=on", "-1"], known) == {
        "-fa": "--flash-attn",
        "--flash-attn": "--flash-attn",
    }
    options.check_known(["-fa", "on", "--threads=4", "-1"], known, "x")
    with pytest.raises(EngineFailure, match="--nope"):
        options.check_known(["--nope=1"], known, "x")


def test_margins_are_placed_only_where_they_are_certain() -> None:
    def entry(token: int) -> completion.Probability:
        return completion.Probability(id=token)

    def placed(tokens: list[int], ids: list[int]) -> list[int | None]:
        found = completion.align(tokens, [entry(i) for i in ids])
        return [e.id if e else None for e in found]

    assert placed([1, 2, 3], [1, 2, 3]) == [1, 2, 3]
    assert placed([1, 2, 3, 4], [1, 4]) == [1, None, None, 4]
    assert placed([5, 7, 7, 9], [5, 7, 9]) == [5, None, None, 9]
    assert placed([1, 2], [3]) == [None, None]
