"""llama-bench, llama-batched-bench, vllm bench and plain commands as arms."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from gates.exact import CellOptions, gate_cell
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Reply, Task
from kvbench.engines.supervisor import Timeouts, run_once
from kvbench.records import Failure
from tests.peers.tiny_gguf import write_tiny_gguf

PEERS = Path(__file__).parents[1] / "peers"
QUICK = Timeouts(hello=60, prepare=60, run=60, bye=10)
SINGLE = Task(prompts=[[1] * 64], generate=16)
PAIR = Task(prompts=[[1] * 32, [2] * 32], generate=16)


def replayed(engine: str, known: str, recording: Path | None = None, **settings: Any) -> Arm:
    recording = recording or PEERS / "recordings" / f"{engine}.jsonl"
    program = [sys.executable, "-I", str(PEERS / "replay.py"), str(recording), known]
    return Arm(name="a", engine=engine, model="tiny.gguf", settings={"program": program} | settings)


BENCH = "-m,-p,-n,-d,-r,-o,-t"
BATCHED = "-m,-c,-npp,-ntg,-npl,--output-format,-t"


def outcome(arm: Arm, task: Task) -> Reply | Failure:
    return run_once(arm, task, QUICK).outcome


def failed(arm: Arm, task: Task) -> Failure:
    found = outcome(arm, task)
    assert isinstance(found, Failure), found
    return found


def test_llama_bench_recorded() -> None:
    run = run_once(replayed("llama-bench", BENCH), SINGLE, QUICK)
    assert isinstance(run.outcome, Reply), run
    row = json.loads((PEERS / "recordings/llama-bench.jsonl").read_text())
    assert run.outcome.result.tokens == 16
    assert run.outcome.result.decode_s == pytest.approx(row["samples_ns"][0] / 1e9)
    assert run.outcome.extra["build_commit"] == "0c1e570"
    assert run.ready is not None and "0c1e570" in run.ready.version


def test_llama_batched_bench_recorded() -> None:
    found = outcome(replayed("llama-batched-bench", BATCHED), PAIR)
    assert isinstance(found, Reply), found
    assert found.result.tokens == 32 and found.result.sequences == 2


def test_an_option_that_help_does_not_name_stops_the_arm() -> None:
    """Dropping two residency options once measured 9.02 instead of 19.43 tokens/s."""
    fault = failed(replayed("llama-bench", BENCH, args=["--kv-residency", "2"]), SINGLE)
    assert fault.kind == "option" and "--kv-residency" in fault.message
    fault = failed(replayed("llama-bench", BENCH.replace("-d,", "")), SINGLE)
    assert fault.kind == "option" and "-d" in fault.message
    fault = failed(replayed("llama-bench", BENCH, args=["-n", "5"]), SINGLE)
    assert fault.kind == "option" and "workload" in fault.message
    spelt = BENCH.replace("-n,", "-n/--n-gen,")
    fault = failed(replayed("llama-bench", spelt, args=["--n-gen", "5"]), SINGLE)
    assert fault.kind == "option" and "--n-gen follows" in fault.message


def test_what_ran_is_compared_with_what_was_asked() -> None:
    fault = failed(replayed("llama-bench", BENCH), Task(prompts=[[1] * 65], generate=16))
    assert fault.kind == "effective" and "n_depth = 65" in fault.message


@pytest.mark.parametrize("drop", ["samples_ns", "n_gen"])
def test_a_missing_field_is_an_error_with_the_version(tmp_path: Path, drop: str) -> None:
    row = json.loads((PEERS / "recordings/llama-bench.jsonl").read_text())
    del row[drop]
    (tmp_path / "r").write_text(json.dumps(row) + "\n")
    fault = failed(replayed("llama-bench", BENCH, tmp_path / "r"), SINGLE)
    assert fault.kind == "schema" and drop in fault.message and "0c1e570" in fault.message


@pytest.mark.parametrize("text", ["", "{broken\n", "{}\n{}\n"])
def test_nonsense_output(tmp_path: Path, text: str) -> None:
    (tmp_path / "r").write_text(text)
    assert failed(replayed("llama-bench", BENCH, tmp_path / "r"), SINGLE).kind == "answer"


def test_a_speed_without_text_is_not_checked() -> None:
    arm = replayed("llama-bench", BENCH)
    report = gate_cell(arm, [arm], [SINGLE], CellOptions(timeouts=QUICK))
    assert report.outcome == "not checked" and report.exit_code == 4


@pytest.fixture
def built() -> Path:
    folder = os.environ.get("KVBENCH_LLAMA_BIN")
    if not folder:
        pytest.skip("KVBENCH_LLAMA_BIN does not name a folder with llama.cpp's programs")
    return Path(folder)


@pytest.mark.optin
@pytest.mark.parametrize(
    ("engine", "task"), [("llama-bench", SINGLE), ("llama-batched-bench", PAIR)]
)
def test_the_real_benchmarks(tmp_path: Path, built: Path, engine: str, task: Task) -> None:
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    settings = {"program": str(built / engine), "args": ["-t", "1"]}
    found = outcome(Arm(name="a", engine=engine, model=model, settings=settings), task)
    assert isinstance(found, Reply), found
    bad = settings | {"args": ["--no-such-option"]}
    assert failed(Arm(name="a", engine=engine, model=model, settings=bad), task).kind == "option"


@pytest.mark.optin
def test_the_real_llama_server(tmp_path: Path, built: Path) -> None:
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    settings = {
        "program": str(built / "llama-server"),
        "threads": 1,
        "context": 512,
        "parallel": 2,
    }
    arms = [Arm(name=n, engine="llama-server", model=model, settings=settings) for n in "ab"]
    task = Task(prompts=[[40 + i for i in range(30)], [90 - i for i in range(30)]], generate=16)
    report = gate_cell(arms[0], arms[1:], [task], CellOptions(timeouts=QUICK))
    assert report.outcome == "passed", report.message


@pytest.mark.optin
@pytest.mark.parametrize(
    ("args", "kind", "words"),
    [
        (["--kv-residency", "2"], "option", "does not know --kv-residency"),
        (["--ctx-size", "99"], "option", "--ctx-size has a setting of its own, context"),
        (["-b", "many"], "start", 'error while handling argument "-b"'),
        (["-ctk", "q9"], "start", "Unsupported cache type: q9"),
        (["--api-prefix", "/x"], "timeout", "/health answered 404"),
        (["--api-key", "k"], "props", "401"),
    ],
)
def test_what_the_real_llama_server_cannot_do_is_one_line(
    tmp_path: Path, built: Path, args: list[str], kind: str, words: str
) -> None:
    model = str(write_tiny_gguf(tmp_path / "tiny.gguf"))
    program = str(built / "llama-server")
    settings = {"program": program, "threads": 1, "context": 512, "ready_s": 5.0, "args": args}
    fault = failed(Arm(name="a", engine="llama-server", model=model, settings=settings), SINGLE)
    assert fault.kind == kind and words in fault.message and "\n" not in fault.message


VLLM = """
import json, sys
a = sys.argv[1:]
known = "--save-result --save-detailed --result-dir --result-filename --rate".split()
if "--help" in a: print("\\n".join(known))
elif "--version" in a: print("0.11.0")
else:
    row = {"duration": 0.01, "completed": 2, "failed": 0, "total_input_tokens": 8,
           "total_output_tokens": 32, "output_throughput": 3200.0, "mean_ttft_ms": 1.5,
           "generated_texts": ["a", "b"], "errors": ["", ""], "new_field": 1}
    row.update(json.loads(a[a.index("--rate") + 1]) if "--rate" in a else {})
    with open(a[a.index("--result-dir") + 1] + "/" + a[a.index("--result-filename") + 1], "w") as f:
        json.dump({k: v for k, v in row.items() if v is not None}, f)
"""


def vllm(**change: Any) -> Arm:
    program = [sys.executable, "-I", "-c", VLLM]
    args = ["--rate", json.dumps(change)] if change else []
    settings = {"program": program, "version_program": program, "args": args}
    return Arm(name="v", engine="vllm-bench", settings=settings)


def test_vllm_bench_by_its_result_file() -> None:
    run = run_once(vllm(), Task(prompts=["x"], generate=16, detail=True), QUICK)
    assert isinstance(run.outcome, Reply), run
    assert run.outcome.result.tokens == 32
    assert run.outcome.result.metrics["mean_ttft_ms"] == 1.5
    assert run.outcome.extra["new_field"] == 1
    assert run.ready is not None and run.ready.version == "0.11.0"


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"failed": 1}, "request", "1 of 3"),
        ({"errors": ["", "timed out"]}, "request", "timed out"),
        ({"duration": None}, "schema", "duration"),
    ],
)
def test_vllm_requests_that_failed_are_never_averaged_away(
    change: dict[str, Any], kind: str, words: str
) -> None:
    fault = failed(vllm(**change), Task(prompts=["x"], generate=16))
    assert fault.kind == kind and words in fault.message


def command(body: str, **settings: Any) -> Arm:
    run = [sys.executable, "-I", "-c", body, "{generate}", "{prompt_file}"]
    settings = {"version": "1", "pattern": r"speed ([\d.]+)"} | settings
    return Arm(name="c", engine="command", settings={"run": run} | settings)


SPEED = "import sys; print('speed 99'); print('speed', int(sys.argv[1]) * 1e4, 'tok/s')"


def test_a_number_by_a_pattern() -> None:
    found = outcome(command(SPEED), SINGLE)
    assert isinstance(found, Reply), found
    assert found.result.tokens == 16 and found.result.decode_s == pytest.approx(1e-4)


def test_a_number_by_a_path_into_json() -> None:
    body = "import json; print('log'); print(json.dumps({'r': [{'ms': 2.5, 'text': 'hi'}]}))"
    arm = command(body, pattern="", json="r.0.ms", unit="ms", text_json="r.0.text")
    found = outcome(arm, Task(prompts=[[1], [2]], generate=8, detail=True))
    assert isinstance(found, Reply), found
    assert found.result.tokens == 16 and found.result.decode_s == pytest.approx(0.0025)
    assert found.texts == ["hi", ""]


def test_prompts_reach_the_program_and_text_is_gated(tmp_path: Path) -> None:
    body = SPEED + "; print('text', open(sys.argv[2]).read()[::-1])"
    arm = command(body, text_pattern="text (.*)")
    other = command(body.replace("[::-1]", "[::-2]"), text_pattern="text (.*)")
    task = Task(prompts=["abcdef"], generate=4, name="t")
    assert gate_cell(arm, [arm], [task], CellOptions(timeouts=QUICK)).outcome == "passed"
    assert gate_cell(arm, [other], [task], CellOptions(timeouts=QUICK)).outcome == "mismatch"


@pytest.mark.parametrize(
    ("body", "settings", "kind"),
    [
        ("import sys; sys.exit(4)", {}, "exit"),
        ("print('nothing')", {}, "extract"),
        ("print('speed .')", {}, "extract"),
        ("print('speed 0')", {}, "extract"),
        ("print('{}')", {"pattern": "", "json": "a.b"}, "extract"),
        ("import time; time.sleep(60)", {"timeout_s": 0.3}, "timeout"),
        (SPEED, {"pattern": "("}, "SettingError"),
        (SPEED, {"pattern": "x"}, "SettingError"),
        (SPEED, {"json": "a"}, "SettingError"),
        (SPEED, {"version": ""}, "SettingError"),
        (SPEED, {"sped": 1}, "SettingError"),
    ],
)
def test_what_goes_wrong_is_named(body: str, settings: dict[str, Any], kind: str) -> None:
    assert failed(command(body, **settings), SINGLE).kind == kind


def test_conversations_need_the_reference_decoder() -> None:
    task = Task(prompts=[[1] * 64], generate=16, options={"conversation": {}})
    for arm in (replayed("llama-bench", BENCH), command(SPEED), vllm()):
        fault = failed(arm, task)
        assert fault.kind == "option" and "'conversation'" in fault.message
        assert "need the engine reference" in fault.message


def test_a_program_that_is_not_there() -> None:
    arm = Arm(name="c", engine="llama-bench", model="m.gguf", settings={"program": "/no/such"})
    assert failed(arm, SINGLE).kind == "start"
    assert shutil.which("/no/such") is None
