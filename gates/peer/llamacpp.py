"""Gate ``llamacpp``: the decoder and its tokenizer against llama.cpp, an independent program.

On the model re-exported to float32 llama.cpp quantises nothing, so the greedy tokens must be
equal. On the model's own file llama.cpp quantises activations too, so there both are led along
the same tokens, and where they would choose differently it must be close.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gates.registry import GateOptions
from kvbench.assets import cache
from kvbench.errors import UsageError
from kvbench.records.gate import Check, Divergence, GateReport, Side

if TYPE_CHECKING:
    from gates.peer.llamacpp_server import LlamaCpp
    from kvbench.decoder.model import Model
    from kvbench.decoder.session import DecodeRun

PROMPT_TOKENS, TASKS_PER_KIND, GENERATE = 128, 2, 64
CHUNK_CHARS = 1 << 16

MAX_DIFFERING = 0.03
"""Share of positions of the quantised file at which the choices may differ."""

SHARE_FROM = 500
"""Positions from which the share is judged: of fewer, one choice more or less is too much."""

MAX_MARGIN = 0.5
"""How far apart, in logits, two differing choices may be, in either program's view."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """What the reference decoder made of each prompt, on its own."""

    prompts: list[list[int]]
    run: DecodeRun


def run(options: GateOptions) -> GateReport:
    """Four corpora tokenised; 8 prompts × 64 tokens decoded, in float32 and as the file has it."""
    from kvbench.decoder.model import gguf_path, open_model

    if importlib.util.find_spec("xllamacpp") is None:
        raise UsageError("gate llamacpp needs the package xllamacpp: pip install 'kvbench[peer]'")
    started = time.monotonic()
    model = open_model(options.model or "smollm2")
    if model.tokenizer is None:
        raise UsageError(f"gate llamacpp: model {model.ref} has no tokenizer")
    source = gguf_path(model.ref)
    options.progress("decoding with the reference decoder")
    ours = _decode(model, options)
    with _server(source, ours, options) as peer:
        checks = [_tokenizer(kind, model, peer, options) for kind in _kinds()]
        checks.append(_forced(ours, peer, options))
    checks.insert(len(checks) - 1, _free(source, model, ours, options))
    return GateReport(
        gate="llamacpp",
        baseline="llama.cpp",
        checks=tuple(checks),
        versions=_versions(model),
        notes=("quick: 1 prompt a kind, 16 tokens; 1 MB of text",) if options.quick else (),
        seconds=time.monotonic() - started,
    )


def _kinds() -> Sequence[str]:
    from kvbench.workloads import KINDS

    return KINDS


def _decode(model: Model, options: GateOptions) -> Decoded:
    """Greedy, KV in float32 like the peer's, one layer ahead; injected faults go in here."""
    from kvbench.decoder.session import DecodeTask, run_task
    from kvbench.decoder.settings import parse
    from kvbench.workloads import prompt_tokens

    each, generate = (1, 16) if options.quick else (TASKS_PER_KIND, GENERATE)
    prompts = [
        prompt_tokens(
            kind, PROMPT_TOKENS, tokenizer=model.tokenizer, seed=options.seed, index=index
        )
        for kind in _kinds()
        for index in range(each)
    ]
    faults = {"faults": list(options.inject)} if options.inject else {}
    settings = parse({"kv_type": "f32", "depth": 1, **options.settings, **faults})
    task = DecodeTask(prompts, generate, detail=True)
    return Decoded(prompts, run_task(model, settings, task))


def _server(path: Path, ours: Decoded, options: GateOptions) -> LlamaCpp:
    from gates.peer.llamacpp_server import LlamaCpp

    context = PROMPT_TOKENS + len(ours.run.tokens[0]) + 64
    threads = max(1, (os.cpu_count() or 1) // 2)
    return LlamaCpp(path, context=context, threads=threads, timeout_s=options.timeout_s)


def _tokenizer(kind: str, model: Model, peer: LlamaCpp, options: GateOptions) -> Check:
    """Equal ids over the whole corpus of a kind."""
    from kvbench.workloads.corpora import corpus

    options.progress(f"tokenising {kind}")
    assert model.tokenizer is not None
    started = time.monotonic()
    texts = _chunks("".join(corpus(kind).pieces)[: 1 << 20 if options.quick else None])
    total = 0
    for number, (text, theirs) in enumerate(zip(texts, peer.tokenize(texts), strict=True)):
        mine = model.tokenizer.encode(text)
        total += len(mine)
        if mine != theirs:
            at = next(
                (i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b),
                min(len(mine), len(theirs)),
            )
            where = f"characters {number * CHUNK_CHARS} on, token {at}"
            context = model.tokenizer.decode(mine[max(0, at - 4) : at + 4])
            return Check(
                name=f"tokenizer {kind}",
                outcome="mismatch",
                message=f"ids differ in {where}, near {context!r}",
                divergence=Divergence(kind="tokens", position=at, detail=where),
            )
    return Check(
        name=f"tokenizer {kind}",
        outcome="passed",
        message=f"{total} ids over {sum(map(len, texts))} characters are equal",
        seconds=time.monotonic() - started,
    )


def _chunks(text: str) -> list[str]:
    return [text[i : i + CHUNK_CHARS] for i in range(0, len(text), CHUNK_CHARS)]


def _free(source: Path, model: Model, ours: Decoded, options: GateOptions) -> Check:
    """Greedy on the float32 export: every token equal."""
    from kvbench.decoder.gguf_export import export_f32

    area = cache.cache_root()
    cache.require_space(area, 5 * model.config.weight_count(), "the model in float32")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="peer-", dir=area) as directory:
        path = Path(directory) / "model.f32.gguf"
        options.progress("writing the model in float32")
        export_f32(source, path)
        with _server(path, ours, options) as peer:
            theirs = []
            for number, (prompt, mine) in enumerate(_tasks(ours)):
                options.progress(f"llama.cpp, float32, prompt {number + 1}")
                theirs.append(peer.greedy(prompt, len(mine)))
    return compare_free(ours.run.tokens, ours.run.top2, theirs, time.monotonic() - started)


def compare_free(
    ours: Sequence[Sequence[int]],
    top2: Sequence[Sequence[tuple[int, float, int, float]]],
    theirs: Sequence[Sequence[int]],
    seconds: float,
) -> Check:
    """Free-running greedy tokens of both, sequence by sequence: equal, or where first not."""
    total = sum(map(len, ours))
    equal = sum(
        a == b for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True)
    )
    check = Check(
        name="greedy, float32",
        outcome="passed",
        message=f"{equal} of {total} tokens are equal",
        seconds=seconds,
        details={"equal": equal, "total": total},
    )
    if equal == total:
        return check
    sequence, position = next(
        (s, p)
        for s, (x, y) in enumerate(zip(ours, theirs, strict=True))
        for p, (a, b) in enumerate(zip(x, y, strict=True))
        if a != b
    )
    best, high, _, low = top2[sequence][position]
    return _replace(
        check,
        outcome="mismatch",
        divergence=Divergence(
            kind="tokens",
            sequence=sequence,
            position=position,
            baseline=Side(token=theirs[sequence][position]),
            arm=Side(token=best, margin=high - low),
        ),
    )


def _forced(ours: Decoded, peer: LlamaCpp, options: GateOptions) -> Check:
    """Led along the decoder's tokens: few choices differ, and each is close."""
    started = time.monotonic()
    theirs = []
    for number, (prompt, mine) in enumerate(_tasks(ours)):
        options.progress(f"llama.cpp, the file itself, prompt {number + 1}")
        theirs.append(peer.forced(prompt, mine))
    return compare_forced(ours.run.top2, theirs, time.monotonic() - started)


def compare_forced(
    top2: Sequence[Sequence[tuple[int, float, int, float]]],
    theirs: Sequence[Sequence[dict[int, float]]],
    seconds: float,
) -> Check:
    """Choices of both at every position of the same tokens.

    A difference's margin is the larger of two gaps: between the choices in the peer's log
    probabilities, and between the decoder's own best two logits. A choice that is not among the
    peer's candidates is as far off as the last of them at least.
    """
    differing: list[dict[str, Any]] = []
    for sequence, (mine, peer) in enumerate(zip(top2, theirs, strict=True)):
        for position, (entry, candidates) in enumerate(zip(mine, peer, strict=True)):
            best, high, _, low = entry
            choice = next(iter(candidates))
            if choice != best:
                worst = min(candidates.values()) - MAX_MARGIN
                gap = candidates[choice] - candidates.get(best, worst)
                margin = round(max(gap, high - low), 4)
                differing.append(
                    {
                        "sequence": sequence,
                        "position": position,
                        "decoder": best,
                        "peer": choice,
                        "margin": margin,
                    }
                )
    total = sum(map(len, top2))
    widest = max((d["margin"] for d in differing), default=0.0)
    few = total < SHARE_FROM or len(differing) <= MAX_DIFFERING * total
    allowed = f"allowed {MAX_DIFFERING:.0%}" if total >= SHARE_FROM else "too few to judge a share"
    return Check(
        name="teacher-forced, the file itself",
        outcome="passed" if few and widest <= MAX_MARGIN else "mismatch",
        message=(
            f"{len(differing)} of {total} choices differ ({allowed}),"
            f" the widest at a margin of {widest:.2f} (allowed {MAX_MARGIN})"
        ),
        seconds=seconds,
        details={"total": total, "differing": differing},
    )


def _tasks(ours: Decoded) -> Sequence[tuple[list[int], list[int]]]:
    return list(zip(ours.prompts, ours.run.tokens, strict=True))


def _replace(check: Check, **changes: Any) -> Check:
    import msgspec

    return msgspec.structs.replace(check, **changes)


def _versions(model: Model) -> dict[str, str]:
    from importlib.metadata import version

    return {"llama.cpp": f"xllamacpp {version('xllamacpp')}", "model": model.digest}
