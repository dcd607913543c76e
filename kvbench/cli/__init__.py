"""The command line: one small module per command, each loaded only when it is invoked."""

from kvbench.cli.frame import main

__all__ = ["main"]
