"""Probes of S7 that rewrite history: shift, defragmentation, state save and load."""

from __future__ import annotations

from typing import Any

import pytest

from kvbench.decoder.engine import Engine
from kvbench.decoder.history import extract, insert
from kvbench.decoder.readback import StepOutput
from kvbench.decoder.settings import parse
from kvbench.decoder.stage import AttentionLayer
from kvbench.device.kernels import Move
from kvbench.device.oplog import OpLog
from kvbench.device.races import check
from kvbench.transport.window import resident_view
from tests.elision.runs import agreeing


class Run:
    """An engine in mid-conversation, and what it has said since."""

    def __init__(self, mode: str, **settings: Any) -> None:
        self.log, self.said = OpLog(), b""
        chosen = parse({"waits": mode, "row_multiple": 16, **settings})
        self.engine = Engine(agreeing(), chosen, 2, 96, log=self.log)
        self.engine.prefill(0, list(range(40)))
        self.engine.prefill(1, list(range(20, 33)))

    def go_on(self) -> None:
        def keep(step: StepOutput) -> None:
            self.said += step.logits.tobytes()

        self.engine.generate({0: 3, 1: 5}, 4, keep)

    @property
    def marked(self) -> bool:
        stage = self.engine.stages[0]
        return stage.device.context.used[stage.compute.name]


def shift(run: Run) -> None:
    run.engine.shift(0, 4, 9)


def defragment(run: Run) -> None:
    """Rows move within a stream without turning: here down by one and up again."""
    engine, stage = run.engine, run.engine.stages[0]
    engine.drain("defragment")
    for item in stage.layers:
        assert isinstance(item, AttentionLayer)
        view = resident_view(item.storage)
        for source, target in ((10, 60), (60, 10)):
            op = stage.kernels.shift(view, [Move(0, source, target, 8)], 0)
            stage.device.submit(stage.compute, op)
    engine.cache.prefix.rewrite()
    if not engine.settings.resident:
        engine.drain("defragment")  # the next delivery reads what was just moved


def load(run: Run) -> None:
    kept = extract(run.engine, 0)
    run.engine.reset(0)
    insert(run.engine, 0, kept)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize("rewrite", [shift, defragment, load], ids=lambda f: f.__name__)
@pytest.mark.parametrize("resident", [False, True], ids=["host", "device"])
def test_history_rewritten_between_tokens_s7(rewrite: Any, graphs: bool, resident: bool) -> None:
    said = {}
    for mode in ("stock", "elided", "quiet"):
        run = Run(mode, resident=resident, depth=0 if resident else 1, graphs=graphs)
        with run.engine:
            run.go_on()
            rewrite(run)
            if resident and rewrite is not load:
                assert run.marked, "work on the device was submitted through the accessor"
            run.go_on()
        assert check(run.log) == []
        said[mode] = run.said
    assert said["stock"] == said["elided"] == said["quiet"]
