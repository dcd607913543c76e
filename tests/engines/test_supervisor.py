"""An arm is a process: whatever it does is a recorded failure of that run, never of the harness."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kvbench.engines.arm import Arm, engine_names
from kvbench.engines.process import Limits
from kvbench.engines.protocol import Reply, Task
from kvbench.engines.supervisor import ArmError, ArmSession, Timeouts, run_once
from kvbench.errors import SettingError
from kvbench.records import Failure
from tests.engines.conftest import HELLO, gone

Scripted = Callable[..., Arm]
QUICK = Timeouts(hello=20, prepare=20, run=20, bye=5)


def failure(
    arm: Arm, task: Task, timeouts: Timeouts = QUICK, limits: Limits | None = None
) -> Failure:
    run = run_once(arm, task, timeouts, limits)
    assert isinstance(run.outcome, Failure), run
    assert "\n" not in run.outcome.message
    return run.outcome


def test_one_run_of_the_documented_example(example: Arm, task: Task) -> None:
    run = run_once(example, task, QUICK)
    assert isinstance(run.outcome, Reply)
    assert run.outcome.tokens is not None and [len(t) for t in run.outcome.tokens] == [8, 8]
    assert run.hello is not None and run.hello.version == "1.0"
    assert run.exit is not None and run.exit.code == 0 and run.exit.leftover == 0
    assert set(run.phases) == {"hello", "prepare", "run", "bye"}


def test_the_documented_example_takes_text_too(example: Arm) -> None:
    """Where a suite's model is ``none`` prompts are text."""
    run = run_once(example, Task(prompts=["ab", "c"], generate=8), QUICK)
    assert isinstance(run.outcome, Reply), run
    assert run.outcome.result.tokens == 16


def test_several_tasks_in_one_process(example: Arm, task: Task) -> None:
    with ArmSession(example, QUICK) as session:
        session.prepare()
        first, second = session.run(task), session.run(task)
    assert first.result.hashes == second.result.hashes
    assert first.id != second.id


def test_an_unknown_setting_stops_the_arm(example: Arm, task: Task) -> None:
    """Fail closed: an option the program does not know is never dropped."""
    arm = Arm(name="x", engine="program", command=example.command, settings={"sallt": 1})
    assert failure(arm, task).kind == "setting"


def test_a_program_that_is_not_there(task: Task) -> None:
    fault = failure(Arm(name="x", engine="program", command=["/no/such/program"]), task)
    assert fault.kind == "start"
    assert "/no/such/program" in fault.message


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("sys.exit(3)", "crash", "code 3"),
        ("print('the reason', file=sys.stderr, flush=True); sys.exit(3)", "crash", "the reason"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crash", "signal 11"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "crash", "signal 9"),
        ("print('hello there', flush=True)", "protocol", "run"),
        ("sys.stdout.buffer.write(bytes(range(256)) + b'\\n'); sys.stdout.flush()", "protocol", ""),
        ("say('result', id=m['id'])", "protocol", "result"),
        ("say('result', id=m['id'], result=ok, tops2=[])", "protocol", "tops2"),
        ("say('result', id=99, result=ok)", "protocol", "99"),
        ("say('result', id=m['id'], result=ok, tokens=[[1]])", "protocol", "sequences"),
        ("say('result', id=m['id'], result={'tokens': 1, 'decode_s': 1e6})", "protocol", "claims"),
        ("say('result', id=m['id'], result={'tokens': 1, 'decode_s': -1})", "protocol", "claims"),
        ('print(\'{"type":"result","id":1,"result":NaN}\', flush=True)', "protocol", ""),
        ("say('hello', protocol=1, name='x', version='1')", "protocol", "hello"),
        ("say('failure', kind='memory', message='no\\nroom')", "memory", "no room"),
        ("print('[' * 100000, flush=True)", "protocol", ""),
    ],
)
def test_nonsense_is_a_recorded_failure(
    scripted: Scripted, task: Task, body: str, kind: str, words: str
) -> None:
    fault = failure(scripted(body), task)
    assert fault.kind == kind
    assert words in fault.message


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("say('hello', protocol=2, name='x', version='1')", "protocol"),
        ("say('hello', protocol=1, name='x')", "protocol"),
        ("say('hello', protocol=1, name='x', version=' '); hear(); say('ready')", "no-version"),
        ("say('ready')", "protocol"),
        ("", "crash"),
    ],
)
def test_a_bad_hello(scripted: Scripted, task: Task, reply: str, kind: str) -> None:
    """No version, no measurement; another protocol version is refused."""
    preamble = """
import sys, json
def say(kind, /, **f): print(json.dumps({"type": kind, **f}), flush=True)
def hear(): return json.loads(sys.stdin.readline())
hear()
"""
    assert failure(scripted(reply, preamble), task).kind == kind


def test_a_version_may_come_with_ready(scripted: Scripted, task: Task) -> None:
    preamble = """
import sys, json
def say(kind, /, **f): print(json.dumps({"type": kind, **f}), flush=True)
def hear(): return json.loads(sys.stdin.readline())
hear(); say("hello", protocol=1, name="x", version="")
hear(); say("ready", version="b42")
m = hear(); say("result", id=m["id"], result={"tokens": 1, "decode_s": 0.0})
"""
    assert isinstance(run_once(scripted("", preamble), task, QUICK).outcome, Reply)


def test_a_hang_ends_at_the_phase_timeout(scripted: Scripted, task: Task) -> None:
    fault = failure(scripted("time.sleep(3600)"), task, Timeouts(run=0.3))
    assert fault.kind == "timeout"
    assert "run" in fault.message


def test_the_phases_together_have_a_limit_too(scripted: Scripted, task: Task) -> None:
    """Issue 6: a time-out per run, whichever phases the time went into."""
    fault = failure(scripted("time.sleep(3600)"), task, Timeouts(run=3600, total=4.0))
    assert fault.kind == "timeout" and "no answer within" in fault.message


def test_progress_is_a_sign_of_life(scripted: Scripted, task: Task) -> None:
    beat = "say('progress', done=1); time.sleep(0.05); "
    alive = scripted(f"for _ in range(8): {beat}\nsay('result', id=m['id'], result=ok)")
    assert isinstance(run_once(alive, task, Timeouts(run=30, silence=10)).outcome, Reply)
    fault = failure(scripted(beat + "time.sleep(3600)"), task, Timeouts(run=30, silence=0.5))
    assert fault.kind == "timeout"


def test_an_arm_that_prints_without_end_is_stopped(scripted: Scripted, task: Task) -> None:
    endless_line = scripted("while True: sys.stdout.write('x' * 65536)")
    fault = failure(endless_line, task, limits=Limits(line_bytes=1 << 20))
    assert fault.kind == "output"
    endless_beats = scripted("while True: say('progress', note='x' * 60000)")
    fault = failure(endless_beats, task, limits=Limits(total_bytes=1 << 20))
    assert fault.kind == "output"


def test_stderr_is_kept_in_bounds(scripted: Scripted, task: Task) -> None:
    body = """
sys.stderr.write("begin" + "x" * (8 << 20) + "end"); sys.stderr.flush()
say("result", id=m["id"], result=ok)
"""
    run = run_once(scripted(body), task, QUICK, Limits(stderr_bytes=4096))
    assert isinstance(run.outcome, Reply)
    assert run.stderr.startswith("begin") and run.stderr.endswith("end")
    assert len(run.stderr) < 5000 and "dropped" in run.stderr


LINGER = {
    "child": "p = subprocess.Popen(['sleep', '3600']).pid",
    "own session": "p = subprocess.Popen(['sleep', '3600'], start_new_session=True).pid",
    "detached": (
        "p = int(subprocess.run([sys.executable, '-c', 'import subprocess; "
        'print(subprocess.Popen(["sleep", "3600"], start_new_session=True, stdin=-3, stdout=-3,'
        "stderr=-3).pid)'], capture_output=True).stdout)"
    ),
    "deaf": (
        "q = subprocess.Popen([sys.executable, '-c', 'import signal, time; "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(3600)'], "
        "stdout=-1); q.stdout.readline(); p = q.pid"
    ),
}
ENDINGS = {
    "result": "say('result', id=m['id'], result=ok)",
    "crash": "sys.exit(1)",
    "hang": "time.sleep(3600)",
}


@pytest.mark.parametrize("linger", LINGER)
@pytest.mark.parametrize("ending", ENDINGS)
def test_no_descendant_outlives_its_run(
    scripted: Scripted, task: Task, tmp_path: Path, linger: str, ending: str
) -> None:
    """The descendant is there before the arm says that it is ready, so that no time-out of the
    run can come before it, however busy the machine."""
    pid_file = tmp_path / "pid"
    begins = f"{LINGER[linger]}\nopen({str(pid_file)!r}, 'w').write(str(p))\n"
    arm = scripted(ENDINGS[ending], HELLO.replace('say("ready")', f'\n{begins}say("ready")'))
    timeouts = Timeouts(prepare=60, run=0.5 if ending == "hang" else 20, bye=1)
    run = run_once(arm, task, timeouts)
    assert isinstance(run.outcome, Reply) == (ending == "result")
    assert gone(int(pid_file.read_text()), 0)
    assert run.exit is not None
    if linger != "child":  # a plain child may have gone at its group's SIGTERM already
        assert run.exit.leftover >= 1


def test_an_arm_that_ignores_bye_is_ended(scripted: Scripted, task: Task) -> None:
    body = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say("result", id=m["id"], result=ok)
time.sleep(3600)
"""
    run = run_once(scripted(body), task, Timeouts(bye=0.2))
    assert isinstance(run.outcome, Reply)
    assert run.exit is not None and run.exit.code == -signal.SIGKILL


HARNESS = """
import sys
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task
from kvbench.engines.supervisor import run_once
run_once(Arm(name="x", engine="program", command=[sys.executable, "-I", "-c", {body!r}]),
         Task(prompts=[[1]], generate=1))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_harness_dies(tmp_path: Path, number: signal.Signals) -> None:
    """Cleanup is armed before work is started: even SIGKILL of the harness takes the tree along."""
    pids = tmp_path / "pids"
    body = textwrap.dedent(f"""
        import os, subprocess, time
        child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        with open({str(pids) + ".new"!r}, "w") as file: file.write(f"{{os.getpid()}} {{child.pid}}")
        os.rename({str(pids) + ".new"!r}, {str(pids)!r})
        time.sleep(3600)
    """)
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS.format(body=body)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    while not pids.exists():
        assert time.monotonic() < deadline and harness.poll() is None
        time.sleep(0.01)
    arm, grandchild = map(int, pids.read_text().split())
    os.kill(harness.pid, number)
    harness.wait(30)
    assert gone(arm) and gone(grandchild)


def test_file_descriptors_and_processes_do_not_accumulate(example: Arm, task: Task) -> None:
    """Other tests of this process may have threads and children of their own."""
    run_once(example, task, QUICK)
    before = len(list(Path("/proc/self/fd").iterdir()))
    children = set(psutil.Process().children())
    for _ in range(10):
        run_once(example, task, QUICK)
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 10
    assert set(psutil.Process().children()) <= children


def test_an_ended_session_says_so(scripted: Scripted, task: Task) -> None:
    with ArmSession(scripted("sys.exit(1)"), QUICK) as session:
        session.prepare()
        with pytest.raises(ArmError, match="code 1"):
            session.run(task)
        with pytest.raises(ArmError, match="has ended"):
            session.run(task)


def test_an_unknown_engine_names_those_there_are() -> None:
    with pytest.raises(SettingError, match="reference"):
        Arm(name="x", engine="llamma").argv()
    assert {"reference", "program"} <= set(engine_names())
    with pytest.raises(SettingError, match="program"):
        Arm(name="x", engine="program").argv()
    with pytest.raises(SettingError, match="only with"):
        Arm(name="x", command=["y"]).argv()


def test_variables_that_change_an_engine_silently_are_cleared() -> None:
    env = Arm(name="x").environ({"LLAMA_ARG_CTX_SIZE": "1", "HOME": "/h"})
    assert "LLAMA_ARG_CTX_SIZE" not in env
    assert env["HOME"] == "/h" and env["OPENBLAS_NUM_THREADS"] == "1"


def test_engines_and_gates_of_other_packages_are_found(
    tmp_path: Path, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through entry points: an engine is a module run with ``python -m``, a gate a function."""
    import importlib

    from gates.registry import GateOptions, load, names

    source = (Path(__file__).parent / "example_arm.py").read_text()
    (tmp_path / "their_arm.py").write_text(source)
    (tmp_path / "their_gate.py").write_text(
        "from kvbench.records.gate import Check, GateReport\n"
        "def run(options):\n"
        "    return GateReport(gate='theirs', checks=(Check('x', 'passed', 'fine'),))\n"
    )
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[kvbench.engines]\ntheirs = their_arm\n[kvbench.gates]\ntheirs = their_gate:run\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    importlib.invalidate_caches()
    assert "theirs" in engine_names() and "theirs" in names()
    run = run_once(Arm(name="x", engine="theirs"), task, QUICK)
    assert isinstance(run.outcome, Reply), run
    assert load("theirs")(GateOptions()).outcome == "passed"
