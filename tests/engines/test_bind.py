"""From a suite to the wire."""

from __future__ import annotations

import pytest

from kvbench.engines.bind import bind
from kvbench.errors import KvbenchError
from kvbench.spec import ArmSpec, Link, Model, Task, Workload

TINY = Model(ref="synthetic", synthetic={"preset": "tiny", "vocab": 300, "seed": 3})
WORK = Workload(kind="code", prompt_tokens=20, generate=4, sequences=2)


def test_a_reference_arm_gets_its_link_faults_and_prompts() -> None:
    spec = ArmSpec(name="b", engine="reference", settings={"depth": 1}, faults={"no-wait": True})
    task = Task(model=TINY, workload=WORK, link=Link(bytes_per_s=2e9, source="stated"), audit=True)
    arm, wire = bind(spec, task)
    assert arm.model == "synthetic:tiny,vocab=300,seed=3"
    assert arm.settings == {"depth": 1, "faults": ["no-wait"], "link_gb_s": 2.0, "audit": True}
    assert [len(prompt) for prompt in wire.prompts] == [20, 20]
    assert wire.prompts[0] != wire.prompts[1]
    assert wire.generate == 4 and wire.name == "code-20x2" and not wire.detail
    assert bind(spec, task)[1] == wire


def test_a_program_arm_takes_its_command_from_its_settings() -> None:
    spec = ArmSpec(name="p", engine="program", settings={"command": ["./arm", "-x"], "salt": 2})
    arm, _ = bind(spec, Task(model=TINY, workload=WORK))
    assert arm.argv() == ["./arm", "-x"] and arm.settings == {"salt": 2}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (ArmSpec(name="x", engine="program", settings={}), "command"),
        (ArmSpec(name="x", engine="program", settings={"command": [1]}), "command"),
        (ArmSpec(name="x", engine="program", faults={"a": 1}), "reference"),
    ],
)
def test_what_cannot_be_asked_is_one_line(spec: ArmSpec, words: str) -> None:
    with pytest.raises(KvbenchError, match=words):
        bind(spec, Task(model=TINY, workload=WORK))


def test_another_engine_has_no_slowed_link() -> None:
    spec = ArmSpec(name="x", engine="program", settings={"command": "y"})
    with pytest.raises(KvbenchError, match="link"):
        bind(spec, Task(model=TINY, workload=WORK, link=Link(bytes_per_s=1e9, source="stated")))
