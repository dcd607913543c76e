"""Summaries to draw: built by hand, so that a view's test needs no measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kvbench.records import (
    ArmSummary,
    CellSummary,
    Comparison,
    Diagnostics,
    GateOutcome,
    RunValue,
    Summary,
    Verdict,
    Warn,
)

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)> | `a` ``b`` @everyone "
    "[x](javascript:1) https://example.org \x1b[31m\u202e \"'&amp; {{7*7}} ]]> --> \r\n| c"
)


def arm(name: str, speed: float, **settings: Any) -> ArmSummary:
    """An arm whose two passes lie 0.1% around ``speed`` tokens/s."""
    return ArmSummary(
        name=name,
        engine="reference",
        settings={"kv_type": "f16", **settings},
        runs=12,
        failures=0,
        tok_s=speed,
        tok_s_passes=(speed * 0.999, speed * 1.001),
        tokens=48,
        ms_per_token=1e3 / speed,
        spread=0.004,
        hashes={"tokens": ("0f" * 16,), "logits": ("1e" * 16,)},
        bytes={"early": 42_000_000, "late": 300_000}
        if name != "ordered"
        else {"ordered": 42_300_000},
        metrics={"step_ms": 1e3 / speed, "window_mib_per_step": 22.5},
        waits={"token": (48, 0, 0)},
        memory={"device_peak": 500 << 20, "ring": 27 << 20},
        telemetry={"cpu_mhz": 2900.0},
        receipt={
            "version": "kvbench 0.1.0",
            "revision": {"commit": f"{name}-commit", "dirty": False},
            "effective": {"lag": 2, **settings},
        },
    )


def comparison(name: str, ratio: float, verdict: Verdict, **fields: Any) -> Comparison:
    """``name`` against "ordered", with intervals of ±1%."""
    return Comparison(
        arm=name,
        baseline="ordered",
        verdict=verdict,
        reason="the 95% interval excludes 0 and the change exceeds δ",
        ratio=ratio,
        ci95=(ratio * 0.99, ratio * 1.01),
        ci90=(ratio * 0.992, ratio * 1.008),
        blocks=(0, 1, 2, 3, 4, 5),
        d=tuple(math.log(ratio) + wobble / 500 for wobble in (-2, 1, 3, -1, -2, 1)),
        method="blocks",
        df=5.0,
        p=0.0001,
        p_adjusted=0.0002,
        diagnostics=Diagnostics(drift_per_block=0.001, order_term=0.0, lag1=-0.1),
        saved_ms_per_token=4.2,
        **fields,
    )


def runs(arms: Sequence[ArmSummary], blocks: int = 6, first: int = 0) -> tuple[RunValue, ...]:
    """ABBA and BAAB blocks; run 5 is an outlier, and block 1 has a voided first attempt."""
    values: list[RunValue] = []
    for block in range(blocks):
        attempts = 2 if block == 1 else 1
        for attempt in range(attempts):
            order = [*arms, *reversed(arms)] if block % 2 == 0 else [*reversed(arms), *arms]
            for position, each in enumerate(order):
                wobble = 1 + 0.002 * ((block * 7 + position * 3) % 5 - 2)
                values.append(
                    RunValue(
                        order=first + len(values),
                        block=block,
                        attempt=attempt,
                        position=position,
                        pass_=position * 2 // len(order),
                        arm=each.name,
                        started=1.7e9 + 10 * len(values),
                        tok_s=(each.tok_s or 0) * wobble,
                        counted=attempt == attempts - 1,
                        outlier=len(values) == 5,
                        violations=("thermal throttling",) if attempt < attempts - 1 else (),
                    )
                )
    return tuple(values)


def cell(
    name: str = "prose-1024",
    gain: float = 1.573,
    verdict: Verdict = Verdict.FASTER,
    first: int = 0,
    **axes: Any,
) -> CellSummary:
    """Two arms: "ordered" at 20 tokens/s and "pipelined" at ``gain`` times that."""
    arms = (arm("ordered", 20.0, depth=0), arm("pipelined", 20.0 * gain, depth=1))
    return CellSummary(
        name=name,
        axes=axes,
        workload={"kind": "prose", "prompt_tokens": 1024, "generate": 48},
        gate=GateOutcome(outcome="passed", message="all bytes equal", seconds=3.0),
        arms=arms,
        comparisons=(comparison("pipelined", gain, verdict),),
        runs=runs(arms, first=first),
        link={"bytes_per_s": 1.2e9, "source": "calibrated", "ratio": 1.0},
    )


def summary(*cells: CellSummary, **fields: Any) -> Summary:
    """An experiment over ``cells`` (one FASTER cell unless given)."""
    given = {
        "v": 1,
        "run": "20260101-120000-smoke",
        "suite": "smoke",
        "description": "Ordered against pipelined",
        "started": 1.7e9,
        "finished": 1.7e9 + 200,
        "kvbench": "0.1.0",
        "baseline": "ordered",
        "delta": 0.01,
        "blocks": 6,
        "looks": (),
        "labels": ("LINK SLOWED TO 1.20 GB/s",),
        "command": ("kvbench", "ab", "smoke"),
        "environment": {"cpu": {"model": "Example CPU", "cores": 2}, "governor": None},
        "environment_hash": "ab" * 16,
        "exit_code": 0,
        "warnings": (Warn("no-aa", "no A/A calibration is stored for this environment"),),
        "notes": ("resumed once",),
        "cells": cells or (cell(),),
    }
    return Summary(**{**given, **fields})


def hostile() -> Summary:
    """Text that tries to break out of every view, wherever text from outside can stand."""
    evil = HOSTILE
    arms = (arm("ordered", 20.0, **{evil: evil}), arm(evil, 21.0))
    broken = CellSummary(
        name=evil,
        axes={evil: evil},
        workload={evil: evil},
        gate=GateOutcome(outcome="mismatch", message=evil),
        arms=arms,
        comparisons=(
            Comparison(
                arm=evil,
                baseline=evil,
                verdict=Verdict.INVALID,
                reason=evil,
                warnings=(Warn(evil, evil),),
            ),
        ),
        runs=(
            RunValue(
                order=0,
                block=0,
                attempt=0,
                position=0,
                pass_=0,
                arm=evil,
                started=1.7e9,
                failure=evil,
                violations=(evil,),
            ),
        ),
        warnings=(Warn(evil, evil),),
    )
    return summary(
        broken,
        cell(),
        run=evil,
        suite=evil,
        description=evil,
        labels=(evil,),
        command=("kvbench", "ab", evil),
        environment={evil: {evil: evil}},
        notes=(evil,),
        warnings=(Warn(evil, evil),),
    )
