"""Arm: any program that prints a number or JSON, by a stated extraction."""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from kvbench.engines import programs
from kvbench.engines.protocol import PROTOCOL, ArmHello, Prepare, Ready, Reply, Run, Task
from kvbench.engines.serve import EngineFailure, refuse_options, serve
from kvbench.engines.settings import parse_settings
from kvbench.errors import SettingError
from kvbench.records import Result

PLACEHOLDERS = ("model", "generate", "sequences", "prompt_tokens", "prompt_file")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[arms.settings]`` of engine ``command``. Exactly one of ``pattern`` and ``json``."""

    run: list[str]
    """Program and arguments; ``{model} {generate} {sequences} {prompt_tokens} {prompt_file}``."""
    pattern: str = ""
    """Regular expression with one group around the number; its last match counts."""
    json: str = ""
    """Dotted path into the JSON document (or last JSON line) printed: ``results.0.tps``."""
    unit: Literal["tok/s", "s", "ms"] = "tok/s"
    """What the number is: a rate over the task's tokens, or the time that they took."""
    text_pattern: str = ""
    """Group around the generated text, for exactness; without it the arm is NOT CHECKED."""
    text_json: str = ""
    text_file: str = ""
    """A file that the program writes, compared byte for byte."""
    version: str = ""
    version_run: list[str] = []
    """A command that prints the version; the first line of its output is the receipt."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 3600.0


class Command:
    """The adapter: one start of the program per task."""

    def __init__(self) -> None:
        self._settings = Settings(run=[])
        self._model = ""

    def hello(self) -> ArmHello:
        """The version is known once the settings are."""
        return ArmHello(protocol=PROTOCOL, name="command", version="", capabilities=["text"])

    def prepare(self, message: Prepare) -> Ready:
        """Check the extraction and ask for the version."""
        if "run" not in message.settings:
            raise SettingError("run", [], "a program and its arguments", "engine command")
        self._settings = s = parse_settings(message.settings, Settings, "command")
        self._model = message.model
        if not s.run:
            raise SettingError("run", s.run, "a program and its arguments", "engine command")
        if bool(s.pattern) == bool(s.json):
            raise SettingError("pattern", s.pattern, "exactly one of pattern and json", "command")
        for name in ("pattern", "text_pattern"):
            _compiled(name, getattr(s, name))
        if bool(s.version) == bool(s.version_run):
            raise SettingError("version", s.version, "exactly one of version and version_run")
        return Ready(version=s.version or self._ask_version(), effective={"run": s.run})

    def _ask_version(self) -> str:
        output = self._start(self._settings.version_run, Task(prompts=[], generate=0), "")
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        return lines[0] if lines else ""

    def run(self, message: Run) -> Reply:
        """Start the program, extract its figure."""
        s, task = self._settings, message.task
        refuse_options(task, "command")
        if task.teacher is not None:
            raise EngineFailure("teacher", "a command cannot be forced")
        if s.text_file:
            Path(s.text_file).unlink(missing_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write(
                "\n".join(p if isinstance(p, str) else " ".join(map(str, p)) for p in task.prompts)
            )
            file.flush()
            output = self._start(s.run, task, file.name)
        number = self._number(output)
        tokens = task.generate * max(1, len(task.prompts))
        seconds = {"tok/s": tokens / number, "s": number, "ms": number / 1e3}[s.unit]
        text = self._text(output)
        hashes = {} if text is None else {"text": hashlib.sha256(text.encode()).hexdigest()}
        return Reply(
            id=message.id,
            result=Result(tokens=tokens, decode_s=seconds, hashes=hashes),
            texts=_as_one(text, len(task.prompts)) if text is not None and task.detail else None,
        )

    def _start(self, argv: list[str], task: Task, prompt_file: str) -> str:
        values = {
            "model": self._model,
            "generate": task.generate,
            "sequences": len(task.prompts),
            "prompt_tokens": len(task.prompts[0]) if task.prompts else 0,
            "prompt_file": prompt_file,
        }
        words = [_filled(word, values) for word in argv]
        return programs.run(words, self._settings.timeout_s)

    def _number(self, output: str) -> float:
        s = self._settings
        where = f"pattern {s.pattern!r}" if s.pattern else f"json {s.json!r}"
        found = _last_group(s.pattern, output) if s.pattern else _at_path(output, s.json)
        try:
            number = float(str(found))
        except ValueError:
            raise EngineFailure("extract", f"{where} found {found!r}, which is no number") from None
        if not 0 < number < float("inf"):
            raise EngineFailure("extract", f"{where} found {number}, which is no rate or time")
        return number

    def _text(self, output: str) -> str | None:
        s = self._settings
        if s.text_file:
            try:
                return Path(s.text_file).read_bytes().decode("latin-1")
            except OSError as error:
                raise EngineFailure("extract", f"{s.text_file}: {error.strerror}") from None
        if s.text_pattern:
            return _last_group(s.text_pattern, output)
        return str(_at_path(output, s.text_json)) if s.text_json else None

    def close(self) -> None:
        """Every program has ended with its task."""


def _compiled(name: str, pattern: str) -> None:
    if not pattern:
        return
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise SettingError(name, pattern, f"a regular expression ({error})", "command") from None
    if groups != 1:
        raise SettingError(name, pattern, "one group around what is wanted", "command")


def _filled(word: str, values: dict[str, Any]) -> str:
    for name in PLACEHOLDERS:
        word = word.replace("{" + name + "}", str(values[name]))
    return word


def _last_group(pattern: str, output: str) -> str:
    matches = re.findall(pattern, output, re.MULTILINE)
    if not matches:
        raise EngineFailure("extract", f"pattern {pattern!r} matches nothing that was printed")
    return str(matches[-1])


def _at_path(output: str, path: str) -> Any:
    found: Any = _json_in(output)
    for step in path.split("."):
        try:
            found = found[int(step)] if isinstance(found, list) else found[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise EngineFailure("extract", f"json {path!r}: there is no {step!r}") from None
    return found


def _json_in(output: str) -> Any:
    """The whole output as JSON, or its last line that is a JSON object or list."""
    for text in [output, *reversed(output.splitlines())]:
        if text.lstrip()[:1] in ("{", "["):
            try:
                return msgspec.json.decode(text.encode())
            except msgspec.DecodeError:
                continue
    raise EngineFailure("extract", "no JSON was printed")


def _as_one(text: str, sequences: int) -> list[str]:
    """A program has one output for all its sequences."""
    return [text, *[""] * (sequences - 1)]


if __name__ == "__main__":
    sys.exit(serve(Command()))
