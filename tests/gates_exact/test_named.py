"""``kvbench gate`` passes as it is and fails for every planted fault (FAULTS.md, issue numbers)."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gates.exact import reference
from gates.registry import GATES, GateOptions, load, names, takes
from kvbench.cli import main
from kvbench.cli.gate import gates_to_run
from kvbench.decoder.model import open_model
from kvbench.decoder.session import DecodeTask, run_task
from kvbench.decoder.settings import parse
from kvbench.device.cuda.driver import missing
from kvbench.errors import SettingError

TINY = "synthetic:tiny,layers=6,vocab=400"
WAITS = ["no_ready_wait", "no_release_wait", "no_boundary_wait", "no_tail_wait", "no_store_wait"]
SHALLOW = {"no_store_wait": "synthetic:tiny,vocab=400"}
"""A carried delivery follows its store closely only where there are few layers between them."""


def test_the_unharmed_decoder_passes_single(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """T6-T8, M: every depth and path gives the ordered path's bytes; JSON and JUnit say so."""
    file = tmp_path / "gate.xml"
    arguments = ["gate", "single", "--quick", "--model", TINY, "--json", "--junit", str(file)]
    assert main(arguments) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["outcome"] == "passed" and report["gate"] == "single"
    assert any("quick" in note for note in report["notes"])
    suite = ElementTree.parse(file).getroot()[0]
    assert suite.get("failures") == "0" and int(suite.get("tests", "0")) == len(report["checks"])


@pytest.mark.long
def test_the_unharmed_decoder_passes_parallel() -> None:
    """8 clients asking different questions over a non-unified cache."""
    report = load("parallel")(GateOptions(model=TINY, quick=True))
    assert report.outcome == "passed", report.message


@pytest.mark.parametrize(
    "fault",
    [pytest.param(name, marks=[pytest.mark.long] if name in WAITS[1:] else []) for name in WAITS],
)
def test_leaving_out_any_wait_fails_the_gate(
    fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault switch, not an edit: the gate fails each time, with exit code 4."""
    model = SHALLOW.get(fault, TINY)
    assert main(["gate", "single", "--quick", "--model", model, "--inject", fault]) == 4
    assert "first at sequence 0, position" in capsys.readouterr().out


@pytest.mark.parametrize("fault", WAITS[:4])
def test_a_missing_wait_shows_at_any_speed(fault: str) -> None:
    """In the explorer's order no delay decides: an arm fails on each path that needs the wait."""
    options = GateOptions(model=TINY, quick=True, inject=(fault,))
    explored = [arm for arm in reference.arms(options, [1]) if arm.settings.get("explore") == 1]
    assert len(explored) == len(reference.PATHS)
    (task,) = reference.tasks(options, ["prose"], [40], generate=6)
    model = open_model(TINY)
    decode = DecodeTask([list(map(int, task.prompts[0]))], generate=6)
    right = run_task(model, parse({}), decode).result.hashes
    wrong = [run_task(model, parse(arm.settings), decode).result.hashes for arm in explored]
    assert any(hashes["logits"] != right["logits"] for hashes in wrong)


@pytest.mark.model
@pytest.mark.long
@pytest.mark.parametrize("fault", WAITS[:4])
def test_leaving_out_a_wait_fails_the_gate_on_the_default_model(fault: str) -> None:
    """Issue 2: each time it is run; a real layer takes longer than an injected delay."""
    assert main(["gate", "single", "--quick", "--inject", fault]) == 4


def test_an_unknown_fault_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["gate", "single", "--quick", "--model", TINY, "--inject", "no_such"])
    assert code == 2
    assert "no_ready_wait" in capsys.readouterr().err


def test_what_decides_the_numbers_is_set_in_every_arm() -> None:
    """``--set`` of a type or a device: the ordered path and the resident arm have it, too."""
    options = GateOptions(model=TINY, settings={"kv_type": "q8_0", "row_multiple": 16})
    controls = [reference.baseline(options), reference.ordered_again(options)]
    controls.append(reference.resident(options))
    tested = reference.arms(options, [1])
    assert {arm.settings["kv_type"] for arm in controls + tested} == {"q8_0"}
    assert {arm.settings["row_multiple"] for arm in tested} == {16}
    assert not any("row_multiple" in arm.settings for arm in controls)


@pytest.mark.parametrize("setting", ["device=cuda", "nonsense=1", "row_multiple=0", "lag=0"])
@pytest.mark.parametrize("gate", ["single", "parallel"])
def test_settings_that_cannot_run_are_refused_before_any_run(
    gate: str, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if setting == "device=cuda" and missing() is None:
        pytest.skip("this machine has a GPU")
    assert main(["gate", gate, "--model", TINY, "--set", setting]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and said[0] == f"gate {gate}" and said[1].startswith("kvbench: ")


@pytest.mark.parametrize("option", [["--model", TINY], ["--inject", WAITS[0]], ["--set", "a=1"]])
def test_a_gate_refuses_what_it_would_pass_over(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """No gate passes as if nothing had been asked; unasked, only those run that take it."""
    deaf = [name for name in GATES if not takes(name, option[:1])]
    assert deaf, "no gate to try it on"
    for name in deaf:
        assert main(["gate", name, *option]) == 2
        assert f"gate {name} takes no {option[0]}" in capsys.readouterr().err
    if option[0] == "--set":
        assert main(["gate", *option]) == 2
        assert "name the gate" in capsys.readouterr().err
    else:
        run = gates_to_run((), option[:1])
        assert run == [n for n in names(default_only=True) if n not in deaf] != []
        said = capsys.readouterr().err
        assert all(name in said for name in deaf if GATES[name].default)


def test_listing_and_unknown_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in GATES)
    assert main(["gate", "no-such-gate"]) == 2
    assert "single" in capsys.readouterr().err
    with pytest.raises(SettingError):
        load("no-such-gate")
    assert set(names(default_only=True)) <= set(names())
