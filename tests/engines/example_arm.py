"""An arm in plain Python, nothing but the standard library: it "decodes" by a recurrence."""

import hashlib
import json
import struct
import sys
import time


def say(kind, /, **fields):
    print(json.dumps({"type": kind, **fields}), flush=True)


def decode(prompt, generate, teacher, salt):
    """Generated ids and, per position, (best id, its logit, second id, its logit)."""
    state, tokens, top2 = salt, [], []
    for token in prompt.encode() if isinstance(prompt, str) else prompt:
        state = (state * 31 + token) % 1_000_003
    for position in range(generate):
        best, second = state % 1000, state // 7 % 1000
        tokens.append(best)
        top2.append([best, (state % 97 + 1) / 10, second, 0.0])
        state = (state * 31 + (teacher[position] if teacher else best)) % 1_000_003
    return tokens, top2


def run(task, salt):
    teacher = task.get("teacher") or [None] * len(task["prompts"])
    started = time.monotonic()
    rows = [
        decode(prompt, task["generate"], forced, salt)
        for prompt, forced in zip(task["prompts"], teacher, strict=True)
    ]
    seconds = time.monotonic() - started
    ids = b"".join(struct.pack("<i", token) for tokens, _ in rows for token in tokens)
    logits = b"".join(struct.pack("<ff", t[1], t[3]) for _, top2 in rows for t in top2)
    hashes = {"tokens": hashlib.sha256(ids), "logits": hashlib.sha256(logits)}
    result = {"tokens": len(ids) // 4, "decode_s": seconds, "sequences": len(rows)}
    result["hashes"] = {name: digest.hexdigest() for name, digest in hashes.items()}
    detail = {"tokens": [r[0] for r in rows], "top2": [r[1] for r in rows]}
    return {"result": result, **(detail if task.get("detail") else {})}


salt = 1
for line in sys.stdin:
    message = json.loads(line)
    match message["type"]:
        case "hello":
            say("hello", protocol=1, name="example", version="1.0", capabilities=["teacher"])
        case "prepare" if unknown := set(message.get("settings", {})) - {"salt"}:
            say("failure", kind="setting", message=f"unknown setting {min(unknown)!r}; known: salt")
        case "prepare":
            salt = message.get("settings", {}).get("salt", 1)
            say("ready", effective={"salt": salt})
        case "run":
            say("result", id=message["id"], **run(message["task"], salt))
        case "bye":
            say("bye")
            break
