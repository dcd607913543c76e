"""Stands in for a benchmark program: knows its options, prints a recording.

Usage: replay.py RECORDING KNOWN_OPTIONS [the program's own arguments]
Options stand between commas, spellings of one option between slashes.
"""

import sys
from pathlib import Path

recording, known, *arguments = sys.argv[1:]
if "--help" in arguments:
    print("\n".join(f"{option.replace('/', ', ')} X" for option in known.split(",")))
elif "--version" in arguments:
    print("version: 0.5.0-dev (build 1, commit 0c1e570)")
else:
    print("a line of log")
    print(Path(recording).read_text(), end="")
