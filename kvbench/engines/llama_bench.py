"""Arms: ``llama-bench`` and ``llama-batched-bench``. They feed random tokens: speed, no text."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar

import msgspec

from kvbench.engines import options, programs
from kvbench.engines.models import model_file
from kvbench.engines.protocol import PROTOCOL, ArmHello, Prepare, Ready, Reply, Run, Task
from kvbench.engines.serve import EngineFailure, refuse_options
from kvbench.engines.server_process import clean_environment
from kvbench.engines.settings import parse_settings
from kvbench.records import Result


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[arms.settings]`` of both engines."""

    program: list[str] | str = ""
    """Default: the engine's name, looked up in PATH."""
    args: list[str] = []
    """Further options; one that ``--help`` does not name stops the arm."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 3600.0


class Bench(ABC):
    """What the two programs have in common: probing, versions, one start per task."""

    name: ClassVar[str]
    own_options: ClassVar[frozenset[str]]
    """Set from the task; refused in ``args``."""

    def __init__(self) -> None:
        self._settings = Settings()
        self._program: list[str] = []
        self._model = self._version = ""

    def hello(self) -> ArmHello:
        """The program's version comes with ``ready``."""
        return ArmHello(protocol=PROTOCOL, name=self.name, version="")

    def prepare(self, message: Prepare) -> Ready:
        """Find the program, check every option against its ``--help``."""
        self._settings = s = parse_settings(message.settings, Settings, self.name)
        self._program = programs.find(s.program or self.name)
        self._model = model_file(message.model, self.name)
        known = options.probe(self._program, clean_environment())
        given = options.given(s.args, known)
        doubled = [given[option] for option in sorted(self.own_options) if option in given]
        if doubled:
            raise EngineFailure("option", f"args: {doubled[0]} follows from the suite's workload")
        probe_task = Task(prompts=[[0]], generate=1)
        options.check_known([*self._options(probe_task), *s.args], known, self._program[0])
        self._version = programs.version(self._program)
        notes = ["random tokens, no text: exactness cannot be checked"]
        return Ready(version=self._version, receipt=programs.receipt(self._program), notes=notes)

    def run(self, message: Run) -> Reply:
        """One start of the program, one figure."""
        task = message.task
        refuse_options(task, self.name)
        if task.teacher is not None:
            raise EngineFailure("teacher", f"{self.name} cannot be forced")
        words = [*self._program, *self._options(task), *self._settings.args]
        rows = list(programs.json_lines(programs.run(words, self._settings.timeout_s)))
        if len(rows) != 1:
            raise EngineFailure(
                "answer", f"{self.name} gave {len(rows)} results, one was asked for"
            )
        return Reply(id=message.id, result=self._result(rows[0], task), extra=rows[0])

    @abstractmethod
    def _options(self, task: Task) -> list[str]:
        """The command line for a task, without the program."""

    @abstractmethod
    def _result(self, row: dict[str, Any], task: Task) -> Result:
        """What one line of output means."""

    def _require(self, row: dict[str, Any], wanted: dict[str, int]) -> None:
        programs.required(row, list(wanted), self.name, self._version)
        for key, value in wanted.items():
            if row[key] != value:
                message = f"asked for {key} = {value}, {self.name} ran {row[key]!r}"
                raise EngineFailure("effective", message)

    def close(self) -> None:  # noqa: B027  (nothing to do, in either program)
        """Every program has ended with its task."""


class LlamaBench(Bench):
    """Token generation after ``-d`` tokens of context, one repetition a run."""

    name = "llama-bench"
    own_options = frozenset({"-m", "-p", "-n", "-d", "-r", "-o", "-pg"})

    def _options(self, task: Task) -> list[str]:
        if len(task.prompts) != 1:
            raise EngineFailure("workload", "llama-bench runs one sequence")
        depth, n = str(_length(task)), str(task.generate)
        return ["-m", self._model, "-p", "0", "-n", n, "-d", depth, "-r", "1", "-o", "jsonl"]

    def _result(self, row: dict[str, Any], task: Task) -> Result:
        self._require(row, {"n_prompt": 0, "n_gen": task.generate, "n_depth": _length(task)})
        programs.required(row, ["samples_ns"], self.name, self._version)
        try:
            (nanoseconds,) = msgspec.convert(row["samples_ns"], list[float])
        except (msgspec.ValidationError, ValueError):
            message = f"samples_ns of {self.name} {self._version} is not one number"
            raise EngineFailure("schema", message) from None
        return Result(tokens=task.generate, decode_s=nanoseconds / 1e9)


class LlamaBatchedBench(Bench):
    """``-npl`` sequences decoded together; the generation part is the figure."""

    name = "llama-batched-bench"
    own_options = frozenset({"-m", "-c", "-npp", "-ntg", "-npl", "--output-format"})

    def _options(self, task: Task) -> list[str]:
        length, n, sequences = _length(task), task.generate, len(task.prompts)
        context = sequences * (length + n)
        return [
            *("-m", self._model, "-c", str(context), "-npp", str(length), "-ntg", str(n)),
            *("-npl", str(sequences), "--output-format", "jsonl"),
        ]

    def _result(self, row: dict[str, Any], task: Task) -> Result:
        wanted = {"pp": _length(task), "tg": task.generate, "pl": len(task.prompts)}
        self._require(row, wanted)
        programs.required(row, ["t_tg", "t_pp"], self.name, self._version)
        tokens = task.generate * len(task.prompts)
        metrics = {"prefill_s": float(row["t_pp"])}
        return Result(
            tokens=tokens, decode_s=float(row["t_tg"]), metrics=metrics, sequences=len(task.prompts)
        )


def _length(task: Task) -> int:
    """Prompt length in tokens; the programs draw the tokens themselves."""
    lengths = {len(prompt) for prompt in task.prompts if not isinstance(prompt, str)}
    if len(lengths) != 1:
        raise EngineFailure("workload", "prompts must be token ids, all of one length")
    return lengths.pop()


def main(engine: type[Bench]) -> int:
    """Serve one of the two."""
    from kvbench.engines.serve import serve

    return serve(engine())


if __name__ == "__main__":
    sys.exit(main(LlamaBench))
