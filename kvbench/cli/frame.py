"""The click frame: a group that loads its commands lazily, and ``main``, the way in and out."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import click

import kvbench
from kvbench.cli.failures import Guard
from kvbench.cli.table import COMMANDS, sections
from kvbench.errors import UsageError

PROG = "kvbench"


class LazyGroup(click.Group):
    """A group whose commands are named by a table and imported when they are invoked."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = importlib.import_module(entry.module).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, names in sections():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), COMMANDS[name].help) for name in names])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.UsageError(_unknown_command(args[0]), ctx)
        return super().resolve_command(ctx, args)


def _unknown_command(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(COMMANDS)}"
    return f"no command {name!r}; {hint}"


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(f"{PROG} {kvbench.__version__}")
        ctx.exit(0)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 --require not met, 2 usage, 3 inconclusive, 4 not exact, "
    "5 environment invalid, 6 an arm failed, 70 a bug in kvbench, 130 interrupted.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
def group() -> None:
    """Says whether an inference optimisation is exact, and whether it is faster."""


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code (see ``kvbench.errors``)."""
    argv = list(sys.argv[1:] if args is None else args)
    if "_KVBENCH_COMPLETE" in os.environ:
        group.main(argv, prog_name=PROG)  # click answers the shell and exits
    _fill_closed_streams()
    guard = Guard(PROG)
    before = _stop_at_signals()
    try:
        with guard:
            _require_text(argv)
            guard.exit_code = _invoke(argv)
            sys.stdout.flush()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return guard.exit_code


def _fill_closed_streams() -> None:
    """A stream that was closed before the start (``>&-``) is the null device.

    Else the next file to be opened would get its number, and whatever a child prints.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)


def _require_text(argv: Sequence[str]) -> None:
    """Refuse bytes that are no characters: what is asked for is stored, and records are text."""
    for number, argument in enumerate(argv, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(
                f"argument {number}, {argument!a}, is not text in this locale's encoding "
                f"({sys.getfilesystemencoding()}); rename the file or write it otherwise"
            ) from None


def _invoke(argv: list[str]) -> int:
    try:
        with group.make_context(PROG, argv) as ctx:
            returned = group.invoke(ctx)
    except click.exceptions.Exit as done:
        return done.exit_code
    return returned if isinstance(returned, int) else 0


class _Stop(KeyboardInterrupt):
    """Ctrl-C or SIGTERM.

    Its own class, since an interpreter that saw a plain KeyboardInterrupt leave any ``exec`` of
    a string (each dataclass has one) ends by SIGINT later, whatever exit code was returned.
    """


def _stop_at_signals() -> dict[signal.Signals, Any]:
    """Make Ctrl-C and SIGTERM unwind alike; returns the handlers to restore, by signal.

    A signal that the parent had ignored (``nohup``) stays ignored. Off the main thread nothing
    can be set, and nothing is.
    """

    def stop(_signum: int, _frame: FrameType | None) -> None:
        raise _Stop

    if threading.current_thread() is not threading.main_thread():
        return {}
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {n: handler for n, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, stop)
    return before
