"""What commands share about their output: ``--json`` and the decision what goes where.

A command's result goes to stdout, everything else (progress, warnings, errors) to stderr. With
``--json`` stdout carries exactly one JSON document, or nothing if the command failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from kvbench.report.progress import Progress

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """Add ``--json`` to a command; its function receives ``as_json: bool``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(
        function
    )


def print_json(document: object) -> None:
    """Print ``document`` (plain data or msgspec structs) as one indented JSON document."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    click.echo(text.decode())


def say(text: str, *, hang: int = 0) -> None:
    """Print ``text`` within the terminal's width; further lines begin ``hang`` columns in."""
    from shutil import get_terminal_size
    from textwrap import fill

    width = max(get_terminal_size().columns, hang + 20)
    wrapped = fill(
        text, width, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False
    )
    click.echo(wrapped)


def watch(title: str, steps: int) -> Progress:
    """Live progress on stderr for an experiment of ``steps`` runs."""
    from kvbench.report.progress import Progress

    return Progress(title, steps)
