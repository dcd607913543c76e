"""A real arm: a process that speaks the protocol and takes a stated time for each token.

Standard library only, so that it starts fast. Settings:

    delay_s       seconds per token, slept
    spin          True: burn that much CPU time instead of sleeping, and report CPU time: what is
                  measured is then the same on a busy machine, and a test may expect a verdict
    token         the id it generates (two arms with different ids differ)
    bytes         bytes it claims to have moved
    hashes        how many further hashes it gives
    scatter_s     uniform random seconds added to each run (not to each token)
    mode          "crash" | "hang" | "garbage" | "flood" | "linger" | "deaf" instead of a result
    after         how many runs go well before ``mode`` sets in, counted in the file ``count``
    version       its version receipt
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def went_well_before(settings: dict[str, Any]) -> bool:
    if "count" not in settings:
        return False
    path = Path(settings["count"])
    with path.open("a") as file:
        file.write("x")
    return path.stat().st_size <= settings.get("after", 0)


def misbehave(mode: str) -> None:
    if mode == "crash":
        os.abort()
    elif mode == "hang":
        time.sleep(3600)
    elif mode == "garbage":
        sys.stdout.write("\x00\xff not json\n")
        sys.stdout.flush()
        time.sleep(3600)
    elif mode == "flood":
        block = b"x" * (1 << 20)
        for _ in range(1024):
            sys.stdout.buffer.write(block)
        sys.stdout.flush()
    elif mode == "linger":
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                if os.fork():
                    os._exit(0)
                null = os.open(os.devnull, os.O_RDWR)
                for standard in (0, 1, 2):
                    os.dup2(null, standard)
                time.sleep(3600)
                os._exit(0)


def decode(settings: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    steps = task["generate"] + task.get("warmup", 0)
    delay = settings.get("delay_s", 0.001)
    clock = time.process_time if settings.get("spin") else time.monotonic
    started = clock()
    for step in range(steps):
        if step == task.get("warmup", 0):
            started = clock()
        if settings.get("spin"):
            end = clock() + delay
            while clock() < end:
                pass
        else:
            time.sleep(delay)
    time.sleep(random.random() * settings.get("scatter_s", 0.0))
    tokens = task["generate"] * len(task["prompts"])
    moved = settings.get("bytes", 1000)
    return {
        "tokens": tokens,
        "decode_s": clock() - started,
        "hashes": {"tokens": f"{settings.get('token', 7):032x}"}
        | {f"further{n}": "0" * 32 for n in range(settings.get("hashes", 0))},
        "bytes": {"ordered": moved},
        "metrics": {"compute_s": delay * task["generate"]},
    }


def main() -> None:
    settings: dict[str, Any] = {}
    for line in sys.stdin:
        message = json.loads(line)
        match message["type"]:
            case "hello":
                say(
                    type="hello",
                    protocol=1,
                    name="synthetic",
                    version="1",
                    capabilities=["tokens"],
                )
            case "prepare":
                settings = message.get("settings", {})
                say(type="ready", version=str(settings.get("version", "1")))
            case "run":
                mode = settings.get("mode")
                if mode and not went_well_before(settings):
                    misbehave(mode)
                task = message["task"]
                ids = [[settings.get("token", 7)] * task["generate"] for _ in task["prompts"]]
                say(
                    type="result",
                    id=message["id"],
                    result=decode(settings, task),
                    tokens=ids if task.get("detail") else None,
                )
            case "bye":
                say(type="bye")
                return


if __name__ == "__main__":
    main()
