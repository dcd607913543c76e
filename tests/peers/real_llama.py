"""llama.cpp's own server (xllamacpp) with a planted misfortune; ``settings.program`` of an arm.

--start-after SECONDS   nothing listens before
--die-when-busy SLOTS   killed once that many slots generate
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
import urllib.request

from kvbench.engines import xllamacpp_server


def taken(option: str) -> str | None:
    """The option's value, taken off the command line that the server will see."""
    if option not in sys.argv:
        return None
    at = sys.argv.index(option)
    value = sys.argv[at + 1]
    del sys.argv[at : at + 2]
    return value


def die_when(busy: int) -> None:
    slots = f"http://127.0.0.1:{sys.argv[sys.argv.index('--port') + 1]}/slots"
    while True:
        time.sleep(0.02)
        with contextlib.suppress(OSError), urllib.request.urlopen(slots) as answer:
            if sum(slot["is_processing"] for slot in json.load(answer)) >= busy:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    start_after, die_when_busy = taken("--start-after"), taken("--die-when-busy")
    if "-m" in sys.argv:
        if die_when_busy:
            threading.Thread(target=die_when, args=(int(die_when_busy),), daemon=True).start()
        time.sleep(float(start_after or 0))
    sys.exit(xllamacpp_server.main())
