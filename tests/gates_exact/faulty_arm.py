"""A deterministic arm with one planted fault, chosen by its settings."""

import hashlib
import json
import os
import struct
import sys
import time

MARGIN = 2.0


def say(kind, /, **fields):
    print(json.dumps({"type": kind, **fields}), flush=True)


def decode(prompt, sequence, task, faults):
    """Ids and top-2 by a recurrence; each fault changes exactly one thing."""
    state, tokens, top2 = 1, [], []
    forced = (task.get("teacher") or {}) and task["teacher"][sequence]
    for token in prompt:
        state = (state * 31 + token) % 1_000_003
    for position in range(task["generate"]):
        best, second, margin = state % 1000, state // 7 % 1000 + 1000, MARGIN
        here = faults.get("at") == [sequence, position]
        if here and faults.get("flip"):
            best, second, margin = second, best, faults.get("margin", MARGIN)
        elif here and faults.get("tie"):
            margin = faults["margin"]
        if here and faults.get("noise"):
            margin += 0.25
        if here and faults.get("random"):
            best = int.from_bytes(os.urandom(3), "little")
        tokens.append(best)
        top2.append([best, margin, second, 0.0])
        state = (state * 31 + (forced[position] if forced else best)) % 1_000_003
    return tokens[: len(tokens) - faults.get("short", 0)], top2


def run(task, faults):
    started = time.monotonic()
    rows = [decode(prompt, s, task, faults) for s, prompt in enumerate(task["prompts"])]
    tokens, top2 = [row[0] for row in rows], [row[1] for row in rows]
    ids = b"".join(struct.pack("<i", token) for row in tokens for token in row)
    logits = b"".join(struct.pack("<ff", t[1], t[3]) for row in top2 for t in row)
    logits += faults.get("hidden", "").encode()
    result = {"tokens": sum(map(len, tokens)), "decode_s": time.monotonic() - started}
    result["bytes"] = faults.get("bytes", {"ordered": 1000, "store": 10})
    result["hashes"] = {
        "tokens": hashlib.sha256(ids).hexdigest(),
        "logits": hashlib.sha256(logits).hexdigest(),
    }
    if faults.get("silent"):
        return {"result": {**result, "hashes": {}}}
    if faults.get("texts"):
        texts = ["".join(chr(97 + token % 26) for token in row) for row in tokens]
        return {"result": {**result, "hashes": {}}, "texts": texts}
    if faults.get("no_top2"):
        return {"result": result, "tokens": tokens}
    return {"result": result, "tokens": tokens, "top2": top2}


faults = {}
for line in sys.stdin:
    message = json.loads(line)
    match message["type"]:
        case "hello":
            say("hello", protocol=1, name="faulty", version="1.0", capabilities=["teacher"])
        case "prepare":
            faults = message.get("settings", {})
            say("ready")
        case "run":
            if faults.get("crash") == message["task"]["name"]:
                sys.exit("planted crash")
            if faults.get("hang") == message["task"]["name"]:
                time.sleep(3600)
            say("result", id=message["id"], **run(message["task"], faults))
        case "bye":
            break
