"""Arm: takes a stated time for each token and nothing else.

For checking the bench itself: a planted effect is known exactly, an A/A is one by construction.
Settings: ``token_s``, seconds slept for each token. Prompts and model are ignored.

Nothing but the standard library, so that ``kvbench selfcheck`` can run it as a plain script that
starts in a few milliseconds.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

DEFAULT_S, LONGEST_S = 0.002, 60.0


def say(kind: str, /, **fields: Any) -> None:
    """One line to the harness."""
    sys.stdout.write(json.dumps({"type": kind, **fields}) + "\n")
    sys.stdout.flush()


def wrong(settings: dict[str, Any]) -> str | None:
    """Why the settings cannot be used, or None."""
    unknown = sorted(set(settings) - {"token_s"})
    if unknown:
        return f"unknown setting {unknown[0]!r}; known: token_s"
    value = settings.get("token_s", DEFAULT_S)
    if type(value) not in (int, float) or not 0 <= value <= LONGEST_S:
        return f"token_s: {value!r}; a number from 0 to {LONGEST_S:g} is needed"
    return None


def decode(task: dict[str, Any], token_s: float) -> dict[str, Any]:
    """Sleep; every token is 0."""
    for _ in range(task.get("warmup", 0)):
        time.sleep(token_s)
    started = time.monotonic()
    for _ in range(task["generate"]):
        time.sleep(token_s)
    seconds = time.monotonic() - started
    sequences = len(task["prompts"])
    tokens = {"tokens": [[0] * task["generate"]] * sequences} if task.get("detail") else {}
    result = {"tokens": task["generate"] * sequences, "decode_s": seconds, "sequences": sequences}
    return {"result": result, **tokens}


def main() -> None:
    """Answer the harness until it says bye."""
    token_s = DEFAULT_S
    for line in sys.stdin:
        message = json.loads(line)
        match message["type"]:
            case "hello":
                say("hello", protocol=1, name="synthetic", version="1", capabilities=["tokens"])
            case "prepare":
                settings = message.get("settings", {})
                if (why := wrong(settings)) is not None:
                    say("failure", kind="setting", message=why)
                    continue
                token_s = settings.get("token_s", DEFAULT_S)
                say("ready", effective={"token_s": token_s})
            case "run":
                say("result", id=message["id"], **decode(message["task"], token_s))
            case "bye":
                say("bye")
                return


if __name__ == "__main__":
    main()
