"""From a suite to the wire."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvbench.engines.arm import Arm
from kvbench.engines.bind import bind_arm, bind_task
from kvbench.engines.protocol import Task
from kvbench.engines.supervisor import run_once
from kvbench.errors import KvbenchError, SettingError
from kvbench.spec import ArmSpec, Link, Workload

TINY = "synthetic:tiny,vocab=300,seed=3"
WORK = Workload(kind="code", prompt_tokens=20, generate=4, sequences=2)
LINK = Link(bytes_per_s=2e9, source="stated")


def test_a_reference_arm_gets_its_link() -> None:
    spec = ArmSpec(name="b", engine="reference", settings={"depth": 1}, affinity=(0,))
    arm = bind_arm(spec, TINY, link=LINK, affinity=(1,))
    assert arm.model == TINY and arm.affinity == (0,)
    assert arm.settings == {"depth": 1, "link_gb_s": 2.0}


def test_prompts_are_exact_different_and_the_same_again() -> None:
    spec = ArmSpec(name="b", engine="reference")
    task = bind_task(spec, TINY, WORK)
    assert [len(prompt) for prompt in task.prompts] == [20, 20]
    assert task.prompts[0] != task.prompts[1]
    assert (task.generate, task.warmup, task.name) == (4, 4, "code-20x2")
    assert bind_task(spec, TINY, WORK) == task


def test_a_program_arm_has_its_command() -> None:
    spec = ArmSpec(name="p", engine="program", command=("./arm", "-x"), settings={"salt": 2})
    arm = bind_arm(spec, TINY)
    assert arm.argv() == ["./arm", "-x"] and arm.settings == {"salt": 2}


def test_what_cannot_be_asked_is_one_line() -> None:
    with pytest.raises(KvbenchError, match="reference"):
        bind_arm(ArmSpec(name="x", engine="program", command=("y",)), TINY, link=LINK)
    both = ArmSpec(name="x", engine="reference", settings={"link_gb_s": 1.0})
    with pytest.raises(KvbenchError, match="beside"):
        bind_arm(both, TINY, link=LINK)
    with pytest.raises(KvbenchError, match="tokenizer"):
        bind_task(ArmSpec(name="x", engine="openai"), TINY, WORK)
    with pytest.raises(KvbenchError, match="none"):
        bind_task(ArmSpec(name="x", engine="openai"), "none", WORK)


def test_affinity_holds_for_the_arm(example: Arm, task: Task, tmp_path: Path) -> None:
    import msgspec

    cpu = min(os.sched_getaffinity(0))
    seen = tmp_path / "seen"
    program = example.command[-1]
    body = f"import os; open({str(seen)!r}, 'w').write(str(os.sched_getaffinity(0)))\n"
    body += f"exec(open({program!r}).read())"
    pinned = msgspec.structs.replace(
        example, command=[*example.command[:-1], "-c", body], affinity=(cpu,)
    )
    run_once(pinned, task)
    assert seen.read_text() == f"{{{cpu}}}"
    with pytest.raises(SettingError, match="affinity"):
        run_once(msgspec.structs.replace(example, affinity=(100_000,)), task)
