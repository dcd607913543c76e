"""Arm: the bundled reference decoder (``python -m kvbench.engines.reference``)."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from kvbench.engines.conversing import CONVERSATION, conversation_task, token_ids
from kvbench.engines.protocol import PROTOCOL, ArmHello, Prepare, Ready, Reply, Run, Task
from kvbench.engines.serve import EngineFailure, serve

if TYPE_CHECKING:
    from kvbench.decoder.model import Model
    from kvbench.decoder.session import DecodeTask
    from kvbench.decoder.settings import DecoderSettings

DEFAULT_MODEL = "smollm2"
HISTORY = "history"
"""Task option: ``{"tokens": N, "seed": S}``, seeded rows instead of a prompt's prefill."""
CAPABILITIES = ["tokens", "top2", "teacher", "logits-hash", "bytes", "parallel", "audit"]
LIBRARIES = ("numpy", "msgspec")
"""Whose versions belong to the receipt: they take part in the arithmetic or the data."""


class Reference:
    """Loads the model once; every task starts from its prefill's snapshot."""

    def __init__(self) -> None:
        self._model: Model | None = None
        self._settings: DecoderSettings | None = None

    def hello(self) -> ArmHello:
        """Version and libraries; nothing is loaded yet."""
        import kvbench

        receipt = {name: _version_of(name) for name in LIBRARIES}
        return ArmHello(
            protocol=PROTOCOL,
            name="reference",
            version=f"kvbench {kvbench.__version__}",
            capabilities=CAPABILITIES,
            receipt=receipt | {"python": sys.version.split()[0]},
        )

    def prepare(self, message: Prepare) -> Ready:
        """Validate the settings and open the model."""
        import msgspec

        from kvbench.decoder.model import open_model
        from kvbench.decoder.settings import parse

        self._settings = parse(message.settings, source="settings of the arm")
        self._model = open_model(message.model or DEFAULT_MODEL)
        return Ready(
            effective=msgspec.to_builtins(self._settings),
            receipt={"model": self._model.ref, "model_digest": self._model.digest},
        )

    def run(self, message: Run) -> Reply:
        """Decode one task."""
        from kvbench.decoder.session import run_task

        if self._model is None or self._settings is None:
            raise EngineFailure("protocol", "run before prepare")
        task = message.task
        if CONVERSATION in task.options:
            return self._converse(self._model, self._settings, message)
        done = run_task(self._model, self._settings, _decode_task(task))
        return Reply(
            id=message.id,
            result=done.result,
            tokens=[row[task.warmup :] for row in done.tokens] if task.detail else None,
            top2=[list(row[task.warmup :]) for row in done.top2] if task.detail else None,
        )

    def _converse(self, model: Model, settings: DecoderSettings, message: Run) -> Reply:
        from kvbench.decoder.conversation import run_conversations

        task = message.task
        done = run_conversations(model, settings, conversation_task(task))
        return Reply(
            id=message.id,
            result=done.result,
            tokens=done.tokens if task.detail else None,
            top2=[list(row) for row in done.top2] if task.detail else None,
        )

    def close(self) -> None:
        """The decoder releases its devices at the end of every task."""


def _decode_task(task: Task) -> DecodeTask:
    from kvbench.decoder import seeded
    from kvbench.decoder.session import DecodeTask

    unknown = sorted(set(task.options) - {HISTORY})
    if unknown:
        raise EngineFailure("option", f"task option {unknown[0]!r} is unknown")
    return DecodeTask(
        prompts=token_ids(task),
        generate=task.generate,
        warmup=task.warmup,
        teacher=task.teacher,
        detail=task.detail,
        limits=not task.detail,
        history=seeded.parse(task.options[HISTORY]) if HISTORY in task.options else None,
    )


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(serve(Reference()))
