"""Arm: Hugging Face transformers, greedy, with its dynamic, offloaded or static cache."""

from __future__ import annotations

import hashlib
import importlib
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from kvbench.engines.protocol import PROTOCOL, ArmHello, Prepare, Ready, Reply, Run, Top2
from kvbench.engines.serve import EngineFailure, refuse_options, serve
from kvbench.engines.settings import parse_settings
from kvbench.records import Result

CAPABILITIES = ["tokens", "top2", "teacher", "logits-hash"]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``[arms.settings]`` of engine ``transformers``. The model is a local checkpoint folder."""

    cache: Literal["dynamic", "offloaded", "static"] = "dynamic"
    """``offloaded`` keeps K and V in host memory and prefetches them; it needs a GPU."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    threads: Annotated[int, msgspec.Meta(ge=1)] | None = None
    random_config: str = ""
    """A folder with a ``config.json``: a model with random weights from ``seed``, no checkpoint."""
    seed: int = 1
    attention: Literal["eager", "sdpa"] = "sdpa"


class Transformers:
    """The adapter. One sequence: batching there pads, which is another computation."""

    def __init__(self) -> None:
        self._settings = Settings()
        self._torch: Any = None
        self._library: Any = None
        self._model: Any = None

    def hello(self) -> ArmHello:
        """Versions of transformers and torch, without importing either."""
        try:
            receipt = {name: version(name) for name in ("transformers", "torch")}
        except PackageNotFoundError as absent:
            raise EngineFailure(
                "start", f"engine transformers needs the package {absent.name}"
            ) from None
        return ArmHello(
            protocol=PROTOCOL,
            name="transformers",
            version=f"transformers {receipt['transformers']}, torch {receipt['torch']}",
            capabilities=CAPABILITIES,
            receipt=receipt,
        )

    def prepare(self, message: Prepare) -> Ready:
        """Import the libraries, load or make the model."""
        self._settings = s = parse_settings(message.settings, Settings, "transformers")
        self._torch, self._library = _imported("torch"), _imported("transformers")
        if s.threads is not None:
            self._torch.set_num_threads(s.threads)
        if s.cache == "offloaded" and s.device == "cpu":
            raise EngineFailure("setting", 'cache = "offloaded" needs a GPU: set device = "cuda"')
        self._torch.manual_seed(s.seed)
        folder = Path(s.random_config or message.model)
        if not (folder / "config.json").is_file():
            raise EngineFailure("model", f"{folder} is no folder with a config.json")
        try:
            self._model = self._load(folder)
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            words = str(error).splitlines()
            raise EngineFailure("model", f"{folder}: {words[0] if words else error!r}") from None
        effective = {
            "cache": s.cache,
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "device": str(self._model.device),
            "attention": self._model.config._attn_implementation,
            "threads": self._torch.get_num_threads(),
        }
        return Ready(effective=effective)

    def _load(self, folder: Path) -> Any:
        s, auto = self._settings, self._library.AutoModelForCausalLM
        options = {"dtype": getattr(self._torch, s.dtype), "attn_implementation": s.attention}
        if s.random_config:
            config = self._library.AutoConfig.from_pretrained(folder)
            model = auto.from_config(config, **options)
        else:
            model = auto.from_pretrained(folder, local_files_only=True, **options)
        return model.to(s.device).eval()

    def run(self, message: Run) -> Reply:
        """Prefill, then one forward pass per token."""
        task = message.task
        refuse_options(task, "transformers")
        if len(task.prompts) != 1 or isinstance(task.prompts[0], str):
            raise EngineFailure("workload", "this engine runs one prompt, given as token ids")
        teacher = None if task.teacher is None else task.teacher[0]
        steps = task.warmup + task.generate
        if teacher is not None and len(teacher) < steps:
            raise EngineFailure("teacher", f"{steps} tokens are needed, {len(teacher)} were given")
        with self._torch.inference_mode():
            tokens, rows, times = self._decode(task.prompts[0], steps, teacher)
        first = task.warmup
        logits = hashlib.sha256()
        for row in rows[first:]:
            logits.update(row.astype("<f4").tobytes())
        ids = np.asarray(tokens[first:], "<i4").tobytes()
        result = Result(
            tokens=task.generate,
            decode_s=times[-1] - times[first],
            hashes={"tokens": hashlib.sha256(ids).hexdigest(), "logits": logits.hexdigest()},
            metrics={"prefill_s": times[0]},
        )
        return Reply(
            id=message.id,
            result=result,
            tokens=[tokens[first:]] if task.detail else None,
            top2=[[_best_two(row) for row in rows[first:]]] if task.detail else None,
        )

    def _decode(
        self, prompt: Sequence[int], steps: int, teacher: Sequence[int] | None
    ) -> tuple[list[int], list[Any], list[float]]:
        """Tokens, float32 logits per position, and when each was there, from the start.

        ``times[0]`` is the prefill's end; position i is ready at ``times[i + 1]``.
        """
        torch, cache = self._torch, self._cache(len(prompt) + steps)
        begin = time.perf_counter()
        self._forward(prompt[:-1], cache, 0)
        times = [time.perf_counter() - begin]
        tokens, rows = [], []
        fed = prompt[-1]
        for step in range(steps):
            logits = self._forward([fed], cache, len(prompt) - 1 + step)
            row = logits.to(torch.float32).cpu().numpy()
            rows.append(row)
            tokens.append(int(row.argmax()))
            fed = tokens[-1] if teacher is None else teacher[step]
            times.append(time.perf_counter() - begin)
        return tokens, rows, times

    def _forward(self, ids: Sequence[int], cache: Any, position: int) -> Any:
        """Logits after the last of ``ids``; nothing for no ids."""
        if not ids:
            return None
        torch, device = self._torch, self._settings.device
        places = torch.arange(position, position + len(ids), device=device)[None]
        given = torch.tensor([list(ids)], device=device)
        return self._model(
            input_ids=given,
            position_ids=places,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[0, -1]

    def _cache(self, length: int) -> Any:
        config = self._model.config
        if self._settings.cache == "static":
            return self._library.StaticCache(config=config, max_cache_len=length)
        offloading = self._settings.cache == "offloaded"
        return self._library.DynamicCache(config=config, offloading=offloading)

    def close(self) -> None:
        """The process's end frees everything."""


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EngineFailure("start", f"{name} cannot be imported: {error}") from None


def _best_two(row: Any) -> Top2:
    second, first = np.argpartition(row, -2)[-2:]
    if row[second] > row[first]:
        first, second = second, first
    return int(first), float(row[first]), int(second), float(row[second])


if __name__ == "__main__":
    sys.exit(serve(Transformers()))
