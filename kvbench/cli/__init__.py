"""The command line: one small module per command, each loaded only when it is invoked."""

from collections.abc import Sequence

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; Ctrl-C is heard from the first import on."""
    try:
        from kvbench.cli import frame
    except KeyboardInterrupt:
        return 130
    return frame.main(args)
