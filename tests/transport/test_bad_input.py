"""Unkind input: refused, or declined where T says so, with name, value, range and source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvbench.cli import main
from kvbench.decoder.engine import Engine
from kvbench.decoder.model import open_model
from kvbench.decoder.settings import parse
from kvbench.device.api import Capabilities
from kvbench.errors import SettingError

TINY = "synthetic:tiny"
RUN = ["run", "--model", TINY, "--prompt-tokens", "4", "--generate", "2"]
WHOLE = "a whole number from"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("depth=9", f"depth = 9 (--set) is not allowed: {WHOLE} 0 to 8"),
        ("depth=-1", f"depth = -1 (--set) is not allowed: {WHOLE} 0 to 8"),
        ("depth=1.5", f"depth = 1.5 (--set) is not allowed: {WHOLE} 0 to 8"),
        ("depth=deep", f"depth = 'deep' (--set) is not allowed: {WHOLE} 0 to 8"),
        ("budget_mib=65537", f"budget_mib = 65537 (--set) is not allowed: {WHOLE} -1 to 65536"),
        ("budget_mib=-2", f"budget_mib = -2 (--set) is not allowed: {WHOLE} -1 to 65536"),
        (
            "budget_mib=18446744073709551617",
            f"budget_mib = 18446744073709551617 (--set) is not allowed: {WHOLE} -1 to 65536",
        ),
        ("headroom_mib=65537", f"headroom_mib = 65537 (--set) is not allowed: {WHOLE} 0 to 65536"),
        ("kv_type=q5_0", "kv_type = 'q5_0' (--set) is not allowed: one of f32, f16, q8_0, q4_0"),
        ("tail=gpu", "tail = 'gpu' (--set) is not allowed: one of host, device"),
        ("devices=2.5", "devices = 2.5 (--set) is not allowed: expected `int`, got `float`"),
        (
            "dept=1",
            "dept = 1 (--set) is not allowed: unknown field `dept`; known settings: ablate, audit",
        ),
    ],
)
def test_a_setting_out_of_range_is_one_line(
    given: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """T12, T15: the command ends with 2 and says what, where from and what is allowed."""
    assert main([*RUN, "--set", given]) == 2
    out, err = capfd.readouterr()
    assert out == "" and said in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("KVBENCH_DEPTH", "two", "depth = 'two' (environment variable KVBENCH_DEPTH)"),
        ("KVBENCH_DEPTH", "", "depth = '' (environment variable KVBENCH_DEPTH)"),
        ("KVBENCH_DEPTH", "99", "depth = 99 (environment variable KVBENCH_DEPTH)"),
        ("KVBENCH_RING_MIB", "1_0", "budget_mib = '1_0' (environment variable KVBENCH_RING_MIB)"),
        ("KVBENCH_RING_MIB", " 8", "budget_mib = ' 8' (environment variable KVBENCH_RING_MIB)"),
        ("KVBENCH_RING_MIB", "9" * 30, "(environment variable KVBENCH_RING_MIB) is not allowed"),
    ],
)
def test_a_variable_is_named(
    variable: str,
    text: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """T12: checked parsing; the source of the value is the variable, not the command."""
    monkeypatch.setenv(variable, text)
    assert main(RUN) == 2
    err = capfd.readouterr().err
    assert said in err and "a whole number" in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
def test_a_head_that_no_block_fits(kv_type: str, capfd: pytest.CaptureFixture[str]) -> None:
    """T19: block formats need whole blocks per head."""
    wanted = [*RUN, "--set", f"kv_type={kv_type}"]
    wanted[2] = "synthetic:tiny,head_dim=20"
    assert main(wanted) == 2
    err = capfd.readouterr().err
    assert f"kv_type = '{kv_type}'" in err and "a head of 20 values" in err and "use f16" in err


def test_a_setter_after_allocation() -> None:
    """T15: the ring stands on these values."""
    with Engine(open_model(TINY), parse({"depth": 1}), 1, 32) as engine:
        engine.prefill(0, [1, 2, 3])
        with pytest.raises(
            SettingError, match=r"budget_mib = 7 .setter after validation.*stays -1"
        ):
            engine.stages[0].pipeline.settings.budget_mib = 7


def _sliced(engine: Engine) -> None:
    engine.devices[0].capabilities = Capabilities(sliced=True)


def _buffered(engine: Engine) -> None:
    engine.devices[0].capabilities = Capabilities(input_copies=4)


def _without_events(engine: Engine) -> None:
    engine.devices[0].capabilities = Capabilities(queue_event_waits=False)


def _borrowed(engine: Engine) -> None:
    pipeline = engine.stages[0].pipeline
    lent = (pipeline.storages[0].lend(), *pipeline.storages[1:])
    pipeline.storages = pipeline.staging.storages = lent


@pytest.mark.parametrize(
    ("make", "reason", "said"),
    [
        (_sliced, "sliced", "sliced = True (declared by the device)"),
        (_buffered, "multi-buffered", "input_copies = 4 (declared by the device): 1 is allowed"),
        (_without_events, "capability", "queue_event_waits = False (declared by the device)"),
        (_borrowed, "borrowed", "annotated = False (storage cpu0/kv0)"),
    ],
)
def test_what_is_declined_says_why_and_changes_no_byte(
    make: Callable[[Engine], None], reason: str, said: str
) -> None:
    """T3, T6, T11, T16: the ordered path, no ring, and the reason in the record."""

    def decode(change: Callable[[Engine], None] | None, **settings: Any) -> tuple[list[bytes], Any]:
        logits: list[bytes] = []
        with Engine(open_model(TINY), parse(settings), 1, 32) as engine:
            if change is not None:
                change(engine)
            engine.prefill(0, [1, 2, 3])
            engine.generate({0: 4}, 3, lambda step: logits.append(step.logits.tobytes()))
            return logits, replace(engine.stages[0].pipeline.telemetry)

    want, _ = decode(None)
    got, telemetry = decode(make, depth=1)
    assert got == want
    assert set(telemetry.declines) == {reason} and telemetry.rings == 0
    assert said in telemetry.details[reason]
