"""A ``llama-server`` look-alike command line around xllamacpp's built-in llama.cpp HTTP server.

Only the options listed by ``--help`` exist; they have llama-server's names and meanings.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from typing import Any

from kvbench.errors import UsageError

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")


def parser() -> argparse.ArgumentParser:
    """The options, in llama-server's spelling."""
    options = argparse.ArgumentParser(prog="xllamacpp-server", allow_abbrev=False)
    options.add_argument("--version", action="store_true", help="print the version and exit")
    options.add_argument("-m", "--model", help="GGUF file")
    options.add_argument("--host", default="127.0.0.1", help="address to listen on")
    options.add_argument("--port", type=int, default=8080, help="port to listen on")
    options.add_argument("-c", "--ctx-size", type=int, default=4096, help="tokens of context")
    options.add_argument("-np", "--parallel", type=int, default=1, help="slots")
    options.add_argument(
        "-fa", "--flash-attn", choices=("on", "off", "auto"), default="auto", help="flash attention"
    )
    options.add_argument("-ngl", "--gpu-layers", type=int, default=0, help="layers on the GPU")
    options.add_argument("-t", "--threads", type=int, default=0, help="threads (0: all)")
    options.add_argument("-tb", "--threads-batch", type=int, default=0, help="threads of prefill")
    options.add_argument("-b", "--batch-size", type=int, default=2048, help="logical batch")
    options.add_argument("-ub", "--ubatch-size", type=int, default=512, help="physical batch")
    options.add_argument(
        "-ctk", "--cache-type-k", choices=KV_TYPES, default="f16", help="type of K"
    )
    options.add_argument(
        "-ctv", "--cache-type-v", choices=KV_TYPES, default="f16", help="type of V"
    )
    options.add_argument("-cram", "--cache-ram", type=int, default=8192, help="MiB of prompt cache")
    options.add_argument(
        "-fit", "--fit", choices=("on", "off"), default="on", help="fit parameters to memory"
    )
    unified = options.add_mutually_exclusive_group()
    unified.add_argument(
        "-kvu", "--kv-unified", dest="unified", action="store_true", help="one buffer for all"
    )
    unified.add_argument(
        "-no-kvu", "--no-kv-unified", dest="unified", action="store_false", help="one per slot"
    )
    options.add_argument(
        "--no-cache-idle-slots",
        dest="cache_idle_slots",
        action="store_false",
        help="forget idle slots",
    )
    options.set_defaults(unified=False)
    return options


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM."""
    options = parser()
    given = options.parse_args(argv)
    try:
        import xllamacpp
    except ImportError:
        raise UsageError(
            "engine xllamacpp needs the package xllamacpp (pip install xllamacpp)"
        ) from None
    if given.version:
        info = xllamacpp.BUILD_INFO
        print(f"version: xllamacpp {xllamacpp.__version__} ({info['commit']}, {info['compiler']})")
        return 0
    if not given.model:
        options.error("-m is required")
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        server = xllamacpp.Server(_params(xllamacpp, given))
    except RuntimeError as error:  # what it was stands in the server's log
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"listening on {server.listening_address}", flush=True)
    stopped.wait()
    del server
    return 0


def _params(xllamacpp: Any, given: argparse.Namespace) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.hostnames, params.port = [given.host], given.port
    params.n_ctx, params.n_parallel = given.ctx_size, given.parallel
    params.n_batch, params.n_ubatch = given.batch_size, given.ubatch_size
    params.n_gpu_layers = given.gpu_layers
    kinds = xllamacpp.llama_flash_attn_type
    params.flash_attn_type = {
        "on": kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED,
        "off": kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        "auto": kinds.LLAMA_FLASH_ATTN_TYPE_AUTO,
    }[given.flash_attn]
    if given.threads:
        params.cpuparams.n_threads = given.threads
    if given.threads_batch or given.threads:
        params.cpuparams_batch.n_threads = given.threads_batch or given.threads
    types = xllamacpp.ggml_type
    params.cache_type_k = getattr(types, f"GGML_TYPE_{given.cache_type_k.upper()}")
    params.cache_type_v = getattr(types, f"GGML_TYPE_{given.cache_type_v.upper()}")
    params.cache_ram_mib, params.cache_idle_slots = given.cache_ram, given.cache_idle_slots
    params.kv_unified, params.fit_params = given.unified, given.fit == "on"
    return params


if __name__ == "__main__":
    sys.exit(main())
