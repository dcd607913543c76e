"""Starter suites for ``kvbench init``: each is valid as it stands and says what to change."""

from __future__ import annotations

STARTERS: dict[str, tuple[str, str]] = {
    "builds": (
        "two builds of llama-server",
        """\
# Is the new build exact, and is it faster? Run: kvbench ab {file}
# Only its gate, with a known-bad setting as a negative control:
#   kvbench gate {file} --must-fail 'new:args=["-ctk","q4_0"]'
schema = 1
name = "builds"
description = "llama-server: old build against new build"
baseline = "old"
gate = "exact"            # outputs must be equal before anything is timed
delta = 0.01              # differences below 1% count as none
blocks = 6                # ABBA blocks, fixed in advance and even
model = "smollm2"         # or the path of a GGUF file

[workload]
kind = "prose"            # prose, code, json, dialogue; or file with path = "..."
prompt_tokens = 512
generate = 128
sequences = 1             # concurrent clients; set parallel below to the same number

[[arms]]
name = "old"
engine = "llama-server"
# args takes any option of the server; one that its --help does not name stops the arm.
settings = {{ program = "/path/to/old/llama-server", context = 4096, parallel = 1, args = [] }}

[[arms]]
name = "new"
engine = "llama-server"
settings = {{ program = "/path/to/new/llama-server", context = 4096, parallel = 1, args = [] }}
""",
    ),
    "flags": (
        "one llama-server with two sets of flags",
        """\
# Does a flag change speed, and nothing else? Run: kvbench ab {file}
schema = 1
name = "flags"
description = "llama-server: without and with the flag"
baseline = "without"
gate = "exact"
delta = 0.01
blocks = 6
model = "smollm2"

[workload]
kind = "prose"
prompt_tokens = 512
generate = 128

[[arms]]
name = "without"
engine = "llama-server"
settings = {{ program = "llama-server", context = 4096, flash_attn = "off" }}

[[arms]]
name = "with"
engine = "llama-server"
settings = {{ program = "llama-server", context = 4096, flash_attn = "on" }}

# A flag that means to alter numerics cannot be exact. Declare how far it may go instead, and every
# report will say so; the server must list enough candidates (settings.probabilities):
#   gate = "tolerance"
#   [tolerance]
#   kl = 0.01
""",
    ),
    "urls": (
        "two OpenAI-compatible servers that run already",
        """\
# Two servers, by URL, on this machine or another one. Run: kvbench ab {file}
# Keys never stand in a suite: name a variable (api_key_env) or a file (api_key_file).
schema = 1
name = "urls"
description = "two OpenAI-compatible servers"
baseline = "a"
gate = "exact"
process = "attached"      # nothing is started; the report says ATTACHED first
delta = 0.02
blocks = 6
model = "none"            # the servers have theirs; lengths are measured by SmolLM2's tokenizer

[workload]
kind = "dialogue"
prompt_tokens = 512
generate = 128
sequences = 4

# A prompt served from a cache voids its run. Of llama.cpp's server it is asked so:
#   settings = {{ url = "...", extra_body = {{ cache_prompt = false }} }}
# Others are told to drop theirs before each task, e.g. flush = "/reset_prefix_cache" for vLLM.
[[arms]]
name = "a"
engine = "openai"
settings = {{ url = "http://127.0.0.1:8000" }}

[[arms]]
name = "b"
engine = "openai"
settings = {{ url = "http://127.0.0.1:8001" }}
""",
    ),
    "reference": (
        "the bundled decoder: ordered against pipelined",
        """\
# The bundled reference decoder: KV cache in host memory, delivered on time or ahead of time.
# Run: kvbench ab {file}
schema = 1
name = "reference"
description = "ordered against pipelined delivery of a host-resident KV cache"
baseline = "ordered"
gate = "exact"
delta = 0.01
blocks = 6
model = "smollm2"         # or a GGUF file, or synthetic:small

[workload]
kind = "prose"
prompt_tokens = 1024
generate = 48

[link]
ratio = 1.0               # slow the link until a token's copies take as long as its compute

[[arms]]
name = "ordered"
engine = "reference"
settings = {{ depth = 0 }}

[[arms]]
name = "pipelined"
engine = "reference"
settings = {{ depth = 1 }}
""",
    ),
}
"""Kind -> (what it is, the suite's text with ``{file}`` for its own name)."""


def starter(kind: str, file: str) -> str:
    """The text of a starter suite that will be stored as ``file``."""
    return STARTERS[kind][1].format(file=file)
