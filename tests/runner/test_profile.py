"""Issue: each arm in a capture of its own; nsys gets the right command; failures are one line."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from kvbench.analysis.profile import call_table, overlap
from kvbench.cli import main
from kvbench.engines.arm import Arm
from kvbench.engines.protocol import Task
from kvbench.errors import ArmFailure, UsageError
from kvbench.records.capture import tokens
from runner import nsys
from runner.profile import choose_source, record
from tests.profile.exports import Export

TASK = Task(prompts=[[1, 2, 3, 4]], generate=3, warmup=2)
PIPELINED = Arm(name="pipelined", model="synthetic:tiny", settings={"depth": 1})


def test_an_arm_is_recorded_without_its_warm_up() -> None:
    ordered = msgspec.structs.replace(PIPELINED, name="ordered", settings={"depth": 0})
    captures = [record(arm, TASK, "oplog", 120.0) for arm in (ordered, PIPELINED)]
    for capture in captures:
        assert capture.tokens == 3
        assert len(tokens(capture)) == 3
        assert capture.source == "oplog"
        assert set(capture.absent) == {"API times"}
    rows = {row.name: row for row in call_table(captures)}
    kernels = rows["cudaLaunchKernel"].arms
    assert kernels["ordered"].calls == kernels["pipelined"].calls > 0
    assert rows["cudaStreamWaitEvent"].arms["ordered"].calls == 0
    assert rows["cudaStreamWaitEvent"].arms["pipelined"].calls > 0
    assert overlap(captures[0]).both == 0, "the ordered path copies on the consumer's own queue"


def test_an_arm_that_fails_says_why() -> None:
    wrong = msgspec.structs.replace(PIPELINED, settings={"deepness": 1})
    with pytest.raises(ArmFailure, match=r"arm 'pipelined': .*deepness = "):
        record(wrong, TASK, "oplog", 120.0)


def test_a_recorded_run_that_hangs_is_ended() -> None:
    with pytest.raises(ArmFailure, match=r"did not end within 0\.05 s"):
        record(PIPELINED, TASK, "oplog", 0.05)


def test_other_engines_are_sent_to_nsys() -> None:
    other = Arm(name="server", engine="program", command=["true"])
    with pytest.raises(UsageError, match="record it with nsys yourself"):
        record(other, TASK, "auto", 10.0)


def test_nsys_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match="no nsys on the PATH"):
        record(PIPELINED, TASK, "nsys", 10.0)


FAKE_NSYS = """#!{python}
import json, pathlib, subprocess, sys
options = [a for a in sys.argv[1:] if a.startswith("--")]
command = [a for a in sys.argv[2:] if not a.startswith("--")]
print("Collecting data...")
done = subprocess.run(command)
output = next(o for o in options if o.startswith("--output=")).split("=", 1)[1]
if {exports}:
    pathlib.Path(output + ".sqlite").write_bytes(pathlib.Path({export!r}).read_bytes())
pathlib.Path({log!r}).write_text(json.dumps(sys.argv[1:]))
sys.exit(done.returncode)
"""


@pytest.mark.parametrize("exports", [True, False])
def test_nsys_runs_the_arm_and_its_export_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exports: bool
) -> None:
    """A stand-in for the program: it runs what it is given and leaves a real-looking export."""
    export = Export(tmp_path / "prepared.sqlite")
    export.calls(1, 12)
    export.add("CUPTI_ACTIVITY_KIND_KERNEL", (0, 5, 0, 1, 7, 1, 0, 4, 4))
    log = tmp_path / "argv.json"
    fake = tmp_path / "bin" / "nsys"
    fake.parent.mkdir()
    text = FAKE_NSYS.format(
        python=sys.executable, export=str(export.save()), log=str(log), exports=exports
    )
    fake.write_text(text)
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(fake.parent), prepend=":")
    if not exports:
        with pytest.raises(ArmFailure, match="nsys wrote no export for arm 'pipelined'"):
            record(PIPELINED, TASK, "nsys", 120.0)
        return
    capture = record(PIPELINED, TASK, "nsys", 120.0)
    assert (capture.arm, capture.source, capture.tokens) == ("pipelined", "nsys", 3)
    assert call_table([capture])[0].arms["pipelined"].calls == 12
    argv = json.loads(log.read_text())
    assert argv[0] == "profile"
    assert {"--trace=cuda,nvtx", "--capture-range=nvtx", "--nvtx-capture=measured@kvbench"} <= set(
        argv
    )
    assert "--cuda-graph-trace=node" in argv


def test_nsys_command_names_the_output_and_ends_with_the_program() -> None:
    command = nsys.command("nsys", Path("/tmp/x"), ["python", "-m", "arm"])
    assert command[-3:] == ["python", "-m", "arm"]
    assert "--output=/tmp/x" in command


SUITE = """
schema = 1
name = "p"
description = "two arms"
baseline = "ordered"
model = "none"
[workload]
kind = "file"
path = "{text}"
[[arms]]
name = "ordered"
engine = "program"
command = ["true"]
[[arms]]
name = "pipelined"
engine = "program"
command = ["true"]
"""


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--cell", "nowhere"], "no cell 'nowhere'; there are: main"),
        (["--tokens", "3"], "--tokens belongs to --import"),
    ],
)
def test_profile_refuses_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], args: list[str], says: str
) -> None:
    text, suite = tmp_path / "text.txt", tmp_path / "suite.toml"
    text.write_text("words " * 50)
    suite.write_text(SUITE.format(text=text))
    assert main(["profile", str(suite), *args]) == 2
    assert says in capsys.readouterr().err


def test_what_records_is_chosen_by_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("runner.profile.find_spec", lambda name: None)
    on_gpu = msgspec.structs.replace(PIPELINED, settings={"device": "cuda"})
    assert choose_source(PIPELINED, "auto") == "oplog"
    assert choose_source(on_gpu, "auto") == "oplog"
    monkeypatch.setattr("runner.profile.find_spec", lambda name: object())
    assert choose_source(on_gpu, "auto") == "cupti"
    with pytest.raises(UsageError, match="does not run on a CUDA device"):
        choose_source(PIPELINED, "cupti")
