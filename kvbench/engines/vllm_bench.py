"""Arm: ``vllm bench serve`` against a running server, by its result JSON."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kvbench.engines import options, programs
from kvbench.engines.protocol import PROTOCOL, ArmHello, Prepare, Ready, Reply, Run
from kvbench.engines.serve import EngineFailure, refuse_options, serve
from kvbench.engines.server_process import clean_environment
from kvbench.engines.settings import parse_settings
from kvbench.records import Result

REQUIRED = ("duration", "completed", "total_input_tokens", "total_output_tokens")
OWN_OPTIONS = frozenset({"--save-result", "--save-detailed", "--result-dir", "--result-filename"})


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[arms.settings]`` of engine ``vllm-bench``. The load is described by ``args`` alone."""

    program: tuple[str, ...] = ("vllm", "bench", "serve")
    args: list[str] = []
    version_program: tuple[str, ...] = ("vllm",)
    """Asked for ``--version``."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 3600.0


class VllmBench:
    """The adapter: one start of the benchmark per task; it brings its own prompts."""

    def __init__(self) -> None:
        self._settings = Settings()
        self._version = ""

    def hello(self) -> ArmHello:
        """The version comes with ``ready``."""
        return ArmHello(protocol=PROTOCOL, name="vllm-bench", version="", capabilities=["text"])

    def prepare(self, message: Prepare) -> Ready:
        """Check the options against ``--help``."""
        self._settings = s = parse_settings(message.settings, Settings, "vllm-bench")
        program = programs.find(list(s.program))
        doubled = OWN_OPTIONS.intersection(options.options_in(s.args))
        if doubled:
            raise EngineFailure("option", f"args: {min(doubled)} is kvbench's own")
        known = options.probe(program, clean_environment())
        options.check_known([*sorted(OWN_OPTIONS), *s.args], known, " ".join(program))
        lines = (
            options.ask(programs.find(list(s.version_program)), "--version").strip().splitlines()
        )
        self._version = lines[-1].strip() if lines else ""
        return Ready(version=self._version, effective={"args": s.args})

    def run(self, message: Run) -> Reply:
        """Run the benchmark once; every request must have completed."""
        refuse_options(message.task, "vllm-bench")
        if message.task.teacher is not None:
            raise EngineFailure("teacher", "vllm bench cannot be forced")
        with tempfile.TemporaryDirectory() as folder:
            where = ["--result-dir", folder, "--result-filename", "result.json"]
            saved = ["--save-result", "--save-detailed", *where]
            programs.run(
                [*self._settings.program, *self._settings.args, *saved], self._settings.timeout_s
            )
            row = self._read(Path(folder) / "result.json")
        return self._reply(message, row)

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            row = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except OSError as error:
            raise EngineFailure("answer", f"no result file: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise EngineFailure("answer", f"the result file is not JSON: {error}") from None
        programs.required(row, REQUIRED, "vllm bench", self._version)
        return row

    def _reply(self, message: Run, row: dict[str, Any]) -> Reply:
        errors = [e for e in row.get("errors", []) if e]
        failed = max(int(row.get("failed", 0)), len(errors))
        if failed:
            why = f": {str(errors[0])[:200]}" if errors else ""
            raise EngineFailure("request", f"{failed} of {failed + row['completed']} failed{why}")
        texts = row.get("generated_texts")
        hashes = {}
        if isinstance(texts, list):
            hashes["text"] = hashlib.sha256("\0".join(map(str, texts)).encode()).hexdigest()
        metrics = {
            key: float(value)
            for key, value in row.items()
            if key.endswith(("_ms", "_throughput")) and isinstance(value, int | float)
        }
        kept = {key: row[key] for key in row if not isinstance(row[key], list | dict)}
        result = Result(
            tokens=int(row["total_output_tokens"]),
            decode_s=float(row["duration"]),
            metrics=metrics,
            hashes=hashes,
            counters={"requests": int(row["completed"])},
        )
        one = ["\0".join(map(str, texts))] if isinstance(texts, list) else None
        sequences = len(message.task.prompts)
        shown = [*one, *[""] * (sequences - 1)] if one and message.task.detail else None
        return Reply(id=message.id, result=result, texts=shown, extra=kept)

    def close(self) -> None:
        """Every benchmark has ended with its task."""


if __name__ == "__main__":
    sys.exit(serve(VllmBench()))
