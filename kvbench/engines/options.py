"""Command-line options, checked against what the program itself says it knows (fail closed)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping, Sequence

from kvbench.engines.serve import EngineFailure

HELP_S = 60.0
_COLUMN = re.compile(r"\s{2,}(?=[^-\s])")
_OPTION = re.compile(r"(?:^|[\s,|/\[])(--?[A-Za-z][A-Za-z0-9._-]*)")
_NUMBER = re.compile(r"^-\d")


Known = Mapping[str, frozenset[str]]
"""Each option a program knows, with all spellings of it (itself among them)."""


def known_options(help_text: str) -> Known:
    """Every option in the left column of a usage text (lines that start with a dash)."""
    found: dict[str, frozenset[str]] = {}
    for line in help_text.splitlines():
        stripped = line.strip()
        if stripped.startswith("-"):
            spellings = frozenset(_OPTION.findall(_COLUMN.split(stripped)[0]))
            found |= dict.fromkeys(spellings, spellings)
    return found


def options_in(args: Sequence[str]) -> list[str]:
    """The options among ``args``; ``--x=1`` counts as ``--x``, negative numbers are values."""
    dashed = [arg for arg in args if arg.startswith("-") and len(arg) > 1]
    return [arg.partition("=")[0] for arg in dashed if not _NUMBER.match(arg)]


def given(args: Sequence[str], known: Known) -> dict[str, str]:
    """What ``args`` set, by every spelling it has: spelling -> the one that was used."""
    return {
        spelling: option
        for option in options_in(args)
        for spelling in known.get(option, frozenset([option]))
    }


def probe(program: Sequence[str], env: dict[str, str] | None = None) -> Known:
    """Ask ``program --help``. Raises EngineFailure("start" or "help") if it cannot be asked."""
    text = ask(program, "--help", env)
    options = known_options(text)
    if not options:
        raise EngineFailure("help", f"{program[0]} --help names no options")
    return options


def ask(program: Sequence[str], option: str, env: dict[str, str] | None = None) -> str:
    """What ``program option`` prints on stdout and stderr together."""
    try:
        done = subprocess.run(
            [*program, option],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=HELP_S,
            env=env,
            check=False,
        )
    except OSError as error:
        raise EngineFailure("start", f"{program[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise EngineFailure("help", f"{program[0]} {option} did not end in {HELP_S:g} s") from None
    return done.stdout.decode(errors="replace")


def check_known(args: Sequence[str], known: Collection[str], program: str) -> None:
    """Raise EngineFailure("option") for the first option that the program does not know."""
    for option in options_in(args):
        if option not in known:
            raise EngineFailure("option", f"{program} does not know {option} (see its --help)")
