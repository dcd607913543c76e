"""The llama-server adapter against llama.cpp's real HTTP server (xllamacpp)."""

from __future__ import annotations

import contextlib
import http.client
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import kvbench
from gates.exact import CellOptions, gate_cell
from kvbench.decoder.model import gguf_path
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Reply, Task
from kvbench.engines.server_process import launch
from kvbench.engines.supervisor import ArmSession, run_once
from kvbench.engines.xllamacpp import PROGRAM
from tests.peers.arms import BASE, NO_LLAMA, QUICK, differences, failure, prompts, real_arm
from tests.peers.servers import REAL_LLAMA, running_real

pytestmark = pytest.mark.peer


@pytest.fixture(scope="session")
def smollm2() -> str:
    pytest.importorskip("xllamacpp", reason=NO_LLAMA)
    return str(gguf_path("smollm2"))


def test_a_run_on_the_real_server(tiny: str) -> None:
    task = Task(prompts=prompts(1), generate=24, warmup=4)
    run = run_once(real_arm(tiny), task, QUICK)
    assert isinstance(run.outcome, Reply), run
    result = run.outcome.result
    assert result.tokens == 24 and result.decode_s > 0
    assert 0 < result.metrics["ttft_s"] < result.metrics["e2e_s"], "streamed, not at once"
    assert run.outcome.tokens is None
    assert run.ready is not None and "xllamacpp" in run.ready.version
    assert run.ready.effective["parallel"] == 1
    assert run.ready.effective["context"] == 1024
    assert run.exit is not None and run.exit.leftover == 0


def test_detail_gives_tokens_and_margins(tiny: str) -> None:
    run = run_once(
        real_arm(tiny, parallel=2), Task(prompts=prompts(2), generate=24, detail=True), QUICK
    )
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
        real_arm(tiny, "a", parallel=slots),
        [real_arm(tiny, "b", parallel=slots)],
        tasks,
        CellOptions(timeouts=QUICK, control_every_arm=True),
    )
    assert report.outcome == "passed", report.message


def test_the_gate_sees_a_quantised_cache(tiny: str) -> None:
    """A build or setting that alters numerics is named, with both margins."""
    tasks = [Task(name=f"t{i}", prompts=prompts(i + 1)[-1:], generate=48) for i in range(3)]
    quantised = real_arm(tiny, "q4", flash_attn="on", args=["-ctk", "q4_0", "-ctv", "q4_0"])
    report = gate_cell(
        real_arm(tiny, "f16", flash_attn="on"), [quantised], tasks, CellOptions(timeouts=QUICK)
    )
    assert report.outcome == "mismatch"
    worst = next(check for check in report.checks if check.outcome == "mismatch")
    assert worst.repeats is True and worst.divergence is not None
    assert worst.divergence.kind == "tokens" and "of 48 positions" in worst.forced


def test_forced_runs_agree_with_free_ones(tiny: str) -> None:
    task = Task(prompts=prompts(1), generate=12, detail=True)
    with ArmSession(real_arm(tiny), QUICK) as session:
        session.prepare()
        free = session.run(task)
        forced = session.run(
            Task(prompts=task.prompts, generate=12, detail=True, teacher=free.tokens)
        )
    assert forced.tokens == free.tokens


def test_an_unknown_option_stops_the_arm(tiny: str) -> None:
    """Fail closed: it is never dropped."""
    fault = failure(
        run_once(
            real_arm(tiny, args=["--no-such-option", "1"]), Task(prompts=[[1]], generate=1), QUICK
        )
    )
    assert fault.kind == "option" and "--no-such-option" in fault.message


@pytest.mark.parametrize(
    ("args", "setting"),
    [
        (["-c", "99"], "context"),
        (["--ctx-size=99"], "context"),
        (["--port", "9999"], "port"),
        (["--host", "0.0.0.0"], "url"),
        (["--model", "other.gguf"], "model"),
        (["--threads", "2"], "threads"),
    ],
)
def test_an_option_with_a_setting_of_its_own_is_refused(
    tiny: str, args: list[str], setting: str
) -> None:
    """Whichever way it is spelt: of two the server would take the last, unseen."""
    fault = failure(run_once(real_arm(tiny, args=args), Task(prompts=[[1]], generate=1), QUICK))
    assert fault.kind == "option" and f"{args[0].partition('=')[0]} has" in fault.message
    assert setting in fault.message


def test_a_setting_that_is_not_set_leaves_its_option_to_args(tiny: str) -> None:
    settings = {"context": 512, "args": ["--threads", "1"]}
    arm = Arm(name="a", engine="xllamacpp", model=tiny, settings=settings)
    run = run_once(arm, Task(prompts=prompts(1), generate=4), QUICK)
    assert isinstance(run.outcome, Reply), run


def test_a_context_that_the_server_cuts_is_refused(tiny: str) -> None:
    """The model was trained on 65536 tokens, and llama.cpp gives no slot more than that."""
    arm = real_arm(tiny, context=70000)
    fault = failure(run_once(arm, Task(prompts=prompts(1), generate=4), QUICK))
    assert fault.kind == "effective" and "70000" in fault.message and "65536" in fault.message


@pytest.mark.parametrize(
    ("content", "words"), [(b"hello", "magic"), (b"GGUF\3\0\0\0" + bytes(8), "")]
)
def test_a_file_that_is_no_model_is_refused_in_the_servers_words(
    tmp_path: Path, content: bytes, words: str
) -> None:
    pytest.importorskip("xllamacpp", reason=NO_LLAMA)
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    fault = failure(run_once(real_arm(str(file)), Task(prompts=[[1]], generate=1), QUICK))
    assert fault.kind == "start" and words in fault.message
    assert "check the input params" not in fault.message


def test_an_unknown_setting_is_refused(tiny: str) -> None:
    fault = failure(run_once(real_arm(tiny, slotz=2), Task(prompts=[[1]], generate=1), QUICK))
    assert "slotz" in fault.message and "parallel" in fault.message


def test_a_model_that_is_not_there() -> None:
    pytest.importorskip("xllamacpp", reason=NO_LLAMA)
    fault = failure(run_once(real_arm("/no/such.gguf"), Task(prompts=[[1]], generate=1), QUICK))
    assert fault.kind == "start" and "\n" not in fault.message


def test_a_port_in_use(tiny: str) -> None:
    """By another such server, which would answer in its place."""
    with running_real(tiny) as url:
        port = int(url.rpartition(":")[2])
        task = Task(prompts=[[1]], generate=1)
        fault = failure(run_once(real_arm(tiny, port=port), task, QUICK))
    assert fault.kind == "port" and str(port) in fault.message


def test_more_sequences_than_fit_is_a_failure_not_a_cut(tiny: str) -> None:
    task = Task(prompts=prompts(1, length=2000), generate=4)
    fault = failure(run_once(real_arm(tiny), task, QUICK))
    assert fault.kind in ("request", "truncated")


@pytest.mark.parametrize("slots", [1, 4])
def test_a_server_killed_in_mid_request(tiny: str, slots: int) -> None:
    dying = [sys.executable, REAL_LLAMA, "--die-when-busy", str(slots)]
    arm = real_arm(tiny, program=dying, context=8192 * slots, parallel=slots)
    fault = failure(run_once(arm, Task(prompts=prompts(slots), generate=8000), QUICK))
    assert fault.kind == "request" and "signal 9" in fault.message


def test_a_server_that_starts_slowly(tiny: str) -> None:
    """Nothing listens for a while; as long as that is allowed the run is as any other."""
    program = [sys.executable, REAL_LLAMA, "--start-after", "2"]
    task = Task(prompts=prompts(1), generate=4)
    run = run_once(real_arm(tiny, program=program), task, QUICK)
    assert isinstance(run.outcome, Reply), run
    hasty = real_arm(tiny, program=program, ready_s=0.5)
    fault = failure(run_once(hasty, task, QUICK))
    assert fault.kind == "timeout" and "0.5 s" in fault.message and "refused" in fault.message


@pytest.mark.model
def test_a_server_that_is_still_loading(smollm2: str) -> None:
    """It listens, and answers 503 until the model is there."""
    codes = []

    def watched(port: int) -> list[str]:
        command = [*PROGRAM, "--port", str(port), "-m", smollm2, "-t", "1"]
        threading.Thread(target=watch, args=(port,), daemon=True).start()
        return command

    def watch(port: int) -> None:
        while 200 not in codes:
            with contextlib.suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/health")
                codes.append(connection.getresponse().status)
                connection.close()
            time.sleep(0.01)

    server = launch(watched, port=None, health="/health", timeout_s=60.0)
    server.stop()
    assert 503 in codes


def test_a_port_that_another_program_took_first(tiny: str) -> None:
    """Between the choice of a free port and the server's start: it is started on another one."""
    chosen: list[int] = []
    with contextlib.ExitStack() as thieves:

        def command(port: int) -> list[str]:
            if not chosen:
                thieves.enter_context(socket.create_server(("127.0.0.1", port)))
            chosen.append(port)
            return [*PROGRAM, "--port", str(port), "-m", tiny, "-t", "1"]

        server = launch(command, port=None, health="/health", timeout_s=60.0)
        server.stop()
    assert len(chosen) == 2 and server.target.port == chosen[1] != chosen[0]


@pytest.mark.parametrize("model", ["tiny", pytest.param("smollm2", marks=pytest.mark.model)])
def test_a_b_of_two_settings(request: pytest.FixtureRequest, model: str, tmp_path: Path) -> None:
    """The whole experiment, gate first."""

    def suite_arm(name: str, batch: int) -> dict[str, Any]:
        settings = BASE | {"parallel": 2, "args": ["-b", str(batch), "-ub", str(batch)]}
        return {"name": name, "engine": "xllamacpp", "settings": settings}

    summary = kvbench.ab(
        {
            "schema": 1,
            "name": "peers",
            "baseline": "a",
            "blocks": 2,
            "model": request.getfixturevalue(model),
            "workload": {"prompt_tokens": 48, "generate": 32, "sequences": 2},
            "environment": {"other_cores": 1e6, "steal": 1.0},
            "arms": [suite_arm("a", 512), suite_arm("b", 64)],
        },
        out=tmp_path / "results",
    )
    (cell,) = summary.cells
    assert cell.gate.outcome == "passed", cell.gate.message
    assert [arm.tokens for arm in cell.arms] == [64, 64]
    assert cell.comparisons[0].verdict != "INVALID", cell.comparisons[0].reason


@pytest.mark.model
def test_the_gate_over_four_slots_of_smollm2(smollm2: str) -> None:
    """Equal servers pass; one with a quantised cache is told apart from them."""
    tasks = [Task(name="t", prompts=prompts(4, length=16), generate=8)]
    slots = {"parallel": 4, "flash_attn": "on"}
    quantised = real_arm(smollm2, "q4", args=["-ctk", "q4_0", "-ctv", "q4_0"], **slots)
    others = [real_arm(smollm2, "same", **slots), quantised]
    report = gate_cell(
        real_arm(smollm2, "f16", **slots), others, tasks, CellOptions(timeouts=QUICK)
    )
    assert report.outcome == "mismatch"
    wrong = {check.arm for check in report.checks if check.outcome == "mismatch"}
    assert wrong == {"q4"}, report.message


def test_two_equal_servers_are_never_called_different_in_200_repetitions(tiny: str) -> None:
    task = Task(prompts=prompts(1), generate=32, detail=True)
    assert differences(real_arm(tiny), real_arm(tiny), task, repetitions=200) == []
