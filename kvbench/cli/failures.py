"""How a command ends when it does not end well: one line on stderr and a stable exit code."""

from __future__ import annotations

import errno
import os
import sys
from types import TracebackType

import click

from kvbench.errors import KvbenchError

INTERRUPTED = 130
PIPE_CLOSED = 141
BUG = 70
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What a write to an open stream fails with; files of kvbench's own are named in their errors."""


class Guard:
    """Context manager around a whole command; turns whatever escapes into ``exit_code``.

    It sees *every* exception, which an ``except`` clause could do only by catching blindly: what
    is not a known kind of failure is reported as a bug, with its traceback kept in a file.
    ``KVBENCH_DEBUG=1`` lets a bug, or a known failure, show its traceback instead.
    """

    def __init__(self, prog: str) -> None:
        self.prog = prog
        self.exit_code = 0

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None or isinstance(error, SystemExit):
            return False
        if os.environ.get("KVBENCH_DEBUG") == "1" and not isinstance(error, BrokenPipeError):
            _print_traceback(error)
        self.exit_code = self._end(error)
        return True

    def _end(self, error: BaseException) -> int:
        match error:
            case KeyboardInterrupt() | click.Abort():
                self._say("interrupted")
                return INTERRUPTED
            case BrokenPipeError():
                _drop_stdout()
                return PIPE_CLOSED
            case click.exceptions.NoArgsIsHelpError():
                click.echo(error.format_message(), err=True)
                return error.exit_code
            case click.ClickException():
                self._say(_usage_line(error))
                return error.exit_code
            case KvbenchError():
                self._say(str(error))
                return error.exit_code
            case OSError(filename=str() | bytes() | os.PathLike()):
                self._say(f"{os.fsdecode(error.filename)}: {error.strerror or error}")
                return KvbenchError.exit_code
            case OSError(errno=number) if number in UNWRITABLE:
                _drop_stdout()
                self._say(f"cannot write: {error.strerror}")
                return KvbenchError.exit_code
        self._say(_bug_line(error))
        return BUG

    def _say(self, text: str) -> None:
        line = " ".join(text.split())
        click.echo(f"{self.prog}: {line}", err=True)


def _usage_line(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    ctx = getattr(error, "ctx", None)
    return f"{message} (see {ctx.command_path} --help)" if ctx else message


def _bug_line(error: BaseException) -> str:
    what = f"internal error: {type(error).__name__}: {error}"
    if os.environ.get("KVBENCH_DEBUG") == "1":
        return what
    return f"{what} (traceback in {_keep_traceback(error)}; KVBENCH_DEBUG=1 prints it)"


def _keep_traceback(error: BaseException) -> str:
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="kvbench-traceback-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
    except OSError as unwritable:
        return f"no file: {unwritable}"
    return file.name


def _print_traceback(error: BaseException) -> None:
    import traceback

    traceback.print_exception(error)


def _drop_stdout() -> None:
    """Point stdout at the null device, so that the last flush finds no closed pipe."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
