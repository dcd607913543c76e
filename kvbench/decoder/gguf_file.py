"""A GGUF file of the Llama, Qwen2 or Qwen3 architecture: configuration, weights one at a time.

Llama files store the rows of q and k permuted so that rotary pairs are adjacent, hence
``rope_interleaved`` is true for them and the rows are used as they lie.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kvbench.decoder.config import ModelConfig
from kvbench.decoder.gguf_header import check_header
from kvbench.decoder.stored_names import StoredNames, joined
from kvbench.decoder.weights import Array
from kvbench.errors import UsageError

ARCHITECTURES = ("llama", "qwen2", "qwen3")

# What gguf's reader raises on content that has the right structure and is nonsense.
_DAMAGE = (ValueError, IndexError, KeyError, TypeError, OverflowError)

NAMES = StoredNames(
    whole={
        "embed": "token_embd.weight",
        "final_norm": "output_norm.weight",
        "head": "output.weight",
    },
    parts={
        "attn_norm": ("attn_norm.weight",),
        "wqkv": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
        "bqkv": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
        "q_norm": ("attn_q_norm.weight",),
        "k_norm": ("attn_k_norm.weight",),
        "wo": ("attn_output.weight",),
        "ffn_norm": ("ffn_norm.weight",),
        "w_gate_up": ("ffn_gate.weight", "ffn_up.weight"),
        "w_down": ("ffn_down.weight",),
    },
    layer="blk.{}.",
)
_FREQUENCIES = "rope_freqs.weight"


class GgufFile:
    """An open file. ``config`` and ``fields`` are read at once, weights when asked for.

    Raises UsageError for a file that is damaged, of another architecture, or that needs
    something the decoder does not do; a tensor that would be left unused counts as such.
    """

    def __init__(self, path: Path) -> None:
        import gguf

        self.path = path
        if not path.is_file():
            raise UsageError(f"model {path}: no such file")
        check_header(path)
        try:
            reader = gguf.GGUFReader(path)
            self.fields: dict[str, Any] = {k: f.contents() for k, f in reader.fields.items()}
            self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        except _DAMAGE as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UsageError(f"model {path}: not a GGUF file, or damaged: {reason}") from error
        self.config = self._read_config()
        self._require_all_tensors()

    def weight(self, name: str) -> Array:
        """The named weight (see ``weights``), dequantised to float32."""
        parts = [self._dequantised(source) for source in self._sources(name)]
        return joined(self.path, self.config, name, parts)

    def _read_config(self) -> ModelConfig:
        self.architecture = architecture = self._field("general.architecture", str)
        if architecture not in ARCHITECTURES:
            raise self._unsupported(f"architecture {architecture!r}", ", ".join(ARCHITECTURES))
        if self._count("expert_count", 0):
            raise self._unsupported("a mixture of experts", "dense models")
        heads, d_model = self._count("attention.head_count"), self._count("embedding_length")
        head_dim = self._count("attention.key_length", d_model // max(heads, 1))
        if self._count("attention.value_length", head_dim) != head_dim:
            raise self._unsupported("values of another width than keys", "equal widths")
        embedding = self._tensors.get(NAMES.whole["embed"])
        if embedding is None:
            raise UsageError(f"model {self.path}: has no tensor {NAMES.whole['embed']}")
        rope_dim = self._count("rope.dimension_count", head_dim)
        config = ModelConfig(
            name=str(self.path),
            n_layers=self._count("block_count"),
            d_model=d_model,
            n_heads=heads,
            n_kv_heads=self._count("attention.head_count_kv", heads),
            head_dim=head_dim,
            d_ff=self._count("feed_forward_length"),
            vocab_size=int(embedding.shape[1]),
            context=self._count("context_length"),
            rope_theta=self._number("rope.freq_base", 10_000.0),
            rms_eps=self._number("attention.layer_norm_rms_epsilon", None),
            rope_interleaved=architecture == "llama",
            rope_dim=rope_dim,
            rope_factors=self._rope_factors(rope_dim),
            tied=NAMES.whole["head"] not in self._tensors,
            qkv_bias=architecture == "qwen2",
            qk_norm=architecture == "qwen3",
        )
        return replace(config, name=str(self.fields.get("general.name") or self.path.stem))

    def _rope_factors(self, rope_dim: int) -> tuple[float, ...]:
        kind = self.fields.get(f"{self.architecture}.rope.scaling.type", "none")
        if kind not in ("none", "linear"):
            raise self._unsupported(f"rope scaling {kind!r}", "'none', 'linear' or rope_freqs")
        linear = self._number("rope.scaling.factor", 1.0) if kind == "linear" else 1.0
        if _FREQUENCIES in self._tensors:
            return tuple(float(f) * linear for f in self._dequantised(_FREQUENCIES))
        return () if linear == 1.0 else (linear,) * (rope_dim // 2)

    def _require_all_tensors(self) -> None:
        """Every weight is in the file with its shape, and every tensor of the file is used."""
        used = {_FREQUENCIES}
        for name, shape in self.config.tensor_shapes().items():
            sources = self._sources(name)
            used.update(sources)
            absent = [source for source in sources if source not in self._tensors]
            if absent:
                raise UsageError(f"model {self.path}: has no tensor {', '.join(absent)}")
            rows = sum(int(np.prod(self._tensors[s].shape[1:])) for s in sources)
            if len(shape) == 2 and rows != shape[0]:
                raise UsageError(f"model {self.path}: {name} has {rows} rows, not {shape[0]}")
        unused = sorted(set(self._tensors) - used)
        if unused:
            raise self._unsupported(f"tensor {unused[0]!r}", "models without it")

    def _sources(self, name: str) -> list[str]:
        return NAMES.sources(self.config, name)

    def _dequantised(self, source: str) -> Array:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        tensor = self._tensors[source]
        kind = tensor.tensor_type
        if kind == GGMLQuantizationType.F32:
            return np.asarray(tensor.data, dtype=np.float32)
        try:
            return np.asarray(dequantize(tensor.data, kind), dtype=np.float32)
        except NotImplementedError:
            raise self._unsupported(
                f"type {kind.name} of tensor {source!r}",
                "F32, F16, BF16, Q4_0, Q4_1, Q8_0, K-quants",
            ) from None

    def _field(self, key: str, kind: type) -> Any:
        value = self.fields.get(key)
        if not isinstance(value, kind):
            found = "is missing" if value is None else f"is {value!r}"
            raise UsageError(f"model {self.path}: field {key} {found}, not {kind.__name__}")
        return value

    def _count(self, key: str, default: int | None = None) -> int:
        full = f"{self.architecture}.{key}"
        if default is not None and full not in self.fields:
            return default
        return int(self._field(full, int))

    def _number(self, key: str, default: float | None) -> float:
        full = f"{self.architecture}.{key}"
        if default is not None and full not in self.fields:
            return default
        return float(self._field(full, float))

    def _unsupported(self, what: str, allowed: str) -> UsageError:
        return UsageError(f"model {self.path}: {what} is not supported; allowed: {allowed}")
