"""The llama-server adapter against llama.cpp's real HTTP server (xllamacpp) and a stub."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from gates.exact import CellOptions, gate_cell
from kvbench.engines import completion, options
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Reply, Task
from kvbench.engines.serve import EngineFailure
from kvbench.engines.supervisor import ArmRun, ArmSession, Timeouts, run_once
from kvbench.records import Failure
from tests.peers.servers import LLAMA, running_stub

QUICK = Timeouts(hello=60, prepare=60, run=60, bye=15)
BASE: dict[str, Any] = {"threads": 1, "context": 1024}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("xllamacpp")
    from tests.peers.tiny_gguf import write_tiny_gguf

    return str(write_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf"))


def arm(model: str, name: str = "a", **settings: Any) -> Arm:
    return Arm(name=name, engine="xllamacpp", model=model, settings=BASE | settings)


def prompts(count: int, length: int = 40) -> list[list[int] | str]:
    return [[32 + (i * 17 + j * j * 7) % 90 for j in range(length)] for i in range(count)]


def failure(run: ArmRun) -> Failure:
    assert isinstance(run.outcome, Failure), run.outcome
    return run.outcome


def test_a_run_on_the_real_server(tiny: str) -> None:
    task = Task(prompts=prompts(1), generate=24, warmup=4)
    run = run_once(arm(tiny), task, QUICK)
    assert isinstance(run.outcome, Reply), run
    result = run.outcome.result
    assert result.tokens == 24 and result.decode_s > 0 and result.metrics["ttft_s"] > 0
    assert run.outcome.tokens is None
    assert run.ready is not None and "xllamacpp" in run.ready.version
    assert run.ready.effective["parallel"] == 1
    assert run.ready.effective["context"] == 1024
    assert run.exit is not None and run.exit.leftover == 0


def test_detail_gives_tokens_and_margins(tiny: str) -> None:
    run = run_once(arm(tiny, parallel=2), Task(prompts=prompts(2), generate=24, detail=True), QUICK)
    assert isinstance(run.outcome, Reply), run
    assert run.outcome.tokens is not None and run.outcome.top2 is not None
    known = 0
    for tokens, top2 in zip(run.outcome.tokens, run.outcome.top2, strict=True):
        assert len(tokens) == len(top2) == 24
        known += sum(pair is not None for pair in top2)
        assert all(
            pair is None or (pair[0] == t and pair[1] >= pair[3])
            for t, pair in zip(tokens, top2, strict=True)
        )
    assert known >= 12


@pytest.mark.parametrize("slots", [1, 4])
def test_the_gate_passes_over_slots(tiny: str, slots: int) -> None:
    tasks = [Task(name="x", prompts=prompts(slots), generate=16)]
    report = gate_cell(
        arm(tiny, "a", parallel=slots),
        [arm(tiny, "b", parallel=slots)],
        tasks,
        CellOptions(timeouts=QUICK, control_every_arm=True),
    )
    assert report.outcome == "passed", report.message


def test_the_gate_sees_a_quantised_cache(tiny: str) -> None:
    """A build or setting that alters numerics is named, with both margins."""
    tasks = [Task(name=f"t{i}", prompts=prompts(i + 1)[-1:], generate=48) for i in range(3)]
    quantised = arm(tiny, "q4", flash_attn="on", args=["-ctk", "q4_0", "-ctv", "q4_0"])
    report = gate_cell(
        arm(tiny, "f16", flash_attn="on"), [quantised], tasks, CellOptions(timeouts=QUICK)
    )
    assert report.outcome == "mismatch"
    worst = next(check for check in report.checks if check.outcome == "mismatch")
    assert worst.repeats is True and worst.divergence is not None
    assert worst.divergence.kind == "tokens" and "of 48 positions" in worst.forced


def test_forced_runs_agree_with_free_ones(tiny: str) -> None:
    task = Task(prompts=prompts(1), generate=12, detail=True)
    with ArmSession(arm(tiny), QUICK) as session:
        session.prepare()
        free = session.run(task)
        forced = session.run(
            Task(prompts=task.prompts, generate=12, detail=True, teacher=free.tokens)
        )
    assert forced.tokens == free.tokens


def test_an_unknown_option_stops_the_arm(tiny: str) -> None:
    """Fail closed: it is never dropped."""
    fault = failure(
        run_once(arm(tiny, args=["--no-such-option", "1"]), Task(prompts=[[1]], generate=1), QUICK)
    )
    assert fault.kind == "option" and "--no-such-option" in fault.message


def test_an_option_with_a_setting_of_its_own_is_refused(tiny: str) -> None:
    fault = failure(run_once(arm(tiny, args=["-c", "99"]), Task(prompts=[[1]], generate=1), QUICK))
    assert fault.kind == "option" and "-c" in fault.message


def test_an_unknown_setting_is_refused(tiny: str) -> None:
    fault = failure(run_once(arm(tiny, slotz=2), Task(prompts=[[1]], generate=1), QUICK))
    assert "slotz" in fault.message and "parallel" in fault.message


def test_a_model_that_is_not_there() -> None:
    pytest.importorskip("xllamacpp")
    fault = failure(run_once(arm("/no/such.gguf"), Task(prompts=[[1]], generate=1), QUICK))
    assert fault.kind == "start" and "\n" not in fault.message


def test_a_port_in_use(tiny: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        fault = failure(run_once(arm(tiny, port=port), Task(prompts=[[1]], generate=1), QUICK))
    assert fault.kind == "port" and str(port) in fault.message


def test_more_sequences_than_fit_is_a_failure_not_a_cut(tiny: str) -> None:
    task = Task(prompts=prompts(1, length=2000), generate=4)
    fault = failure(run_once(arm(tiny), task, QUICK))
    assert fault.kind in ("request", "truncated")


def test_a_server_killed_in_mid_request(tiny: str, tmp_path: Path) -> None:
    body = """
import contextlib, json, os, signal, sys, threading, time, urllib.request
sys.argv[0] = "x"
from kvbench.engines import xllamacpp_server as s
def die_in_mid_request():
    slots = f"http://127.0.0.1:{sys.argv[sys.argv.index('--port') + 1]}/slots"
    while True:
        time.sleep(0.05)
        with contextlib.suppress(OSError):
            if any(slot["is_processing"] for slot in json.load(urllib.request.urlopen(slots))):
                os.kill(os.getpid(), signal.SIGKILL)
if "-m" in sys.argv:
    threading.Thread(target=die_in_mid_request, daemon=True).start()
sys.exit(s.main())
"""
    program = tmp_path / "dying.py"
    program.write_text(body)
    dying = arm(tiny, program=[sys.executable, str(program)], context=32768)
    fault = failure(run_once(dying, Task(prompts=prompts(1), generate=30000), QUICK))
    assert fault.kind == "request" and "signal 9" in fault.message


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
def test_a_b_of_two_settings(tiny: str, tmp_path: Path) -> None:
    """Real peers: the whole experiment, gate first, on llama.cpp's own server."""
    import kvbench

    def suite_arm(name: str, batch: int) -> dict[str, Any]:
        settings = BASE | {"parallel": 2, "args": ["-b", str(batch), "-ub", str(batch)]}
        return {"name": name, "engine": "xllamacpp", "settings": settings}

    summary = kvbench.ab(
        {
            "schema": 1,
            "name": "peers",
            "baseline": "a",
            "blocks": 2,
            "model": tiny,
            "workload": {"prompt_tokens": 48, "generate": 64, "sequences": 2},
            "environment": {"other_cores": 1e6, "steal": 1.0},
            "arms": [suite_arm("a", 512), suite_arm("b", 64)],
        },
        out=tmp_path / "results",
    )
    (cell,) = summary.cells
    assert cell.gate.outcome == "passed", cell.gate.message
    assert [arm.tokens for arm in cell.arms] == [128, 128]
    assert cell.comparisons[0].verdict != "INVALID", cell.comparisons[0].reason


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


@pytest.mark.peer
def test_the_real_server_is_never_called_different_from_itself(tiny: str) -> None:
    from gates.exact.compare import first_divergence

    task = Task(prompts=prompts(1), generate=32, detail=True)
    with ArmSession(arm(tiny), QUICK) as session:
        session.prepare()
        first = session.run(task)
        for _ in range(200):
            assert first_divergence(first, session.run(task)) is None


def test_known_options() -> None:
    text = """usage: llama-server [options]
-h,    --help, --usage                  print usage and exit; see --not-an-option
-fa,   --flash-attn [on|off|auto]       set Flash Attention use
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        --text-in-the-description
  -t N, --threads=N   number
"""
    known = options.known_options(text)
    assert {"-h", "--help", "--usage", "-fa", "--flash-attn", "-no-kvu", "--threads"} <= known
    assert "--not-an-option" not in known
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
