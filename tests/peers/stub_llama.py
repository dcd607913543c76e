"""The stub behind a llama-server-like command line; ``--slow SECONDS`` delays its start."""

import asyncio
import sys

sys.path.insert(0, sys.path[0])
import stub_server

HELP = """-h, --help          help
--host HOST         address
--port N            port
-m, --model FILE    model
-c, --ctx-size N    context
-np, --parallel N   slots
-fa, --flash-attn X flash attention
--no-kv-unified     one cache per slot
"""

if "--help" in sys.argv:
    print(HELP)
elif "--version" in sys.argv:
    print("version: 42 (stub)")
else:
    slow = float(sys.argv[sys.argv.index("--slow") + 1]) if "--slow" in sys.argv else 0.0
    port = int(sys.argv[sys.argv.index("--port") + 1])
    slots = int(sys.argv[sys.argv.index("-np") + 1])
    asyncio.run(stub_server.serve(port, {"slow_start_s": slow, "slots": slots}))
