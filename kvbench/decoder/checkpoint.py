"""A Hugging Face checkpoint folder: ``config.json`` and safetensors of Llama, Qwen2 or Qwen3.

Pickle formats are refused: reading one runs its code. Sizes are checked against the file before
anything is allocated, so that a damaged header costs nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvbench.assets.digests import remembered_digest
from kvbench.decoder.config import ModelConfig
from kvbench.decoder.safetensors_file import Place, read_places, read_tensor
from kvbench.decoder.stored_names import StoredNames, joined
from kvbench.decoder.weights import Array
from kvbench.errors import UsageError

FAMILIES = ("llama", "qwen2", "qwen3")
CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
MAX_JSON = 64 << 20

NAMES = StoredNames(
    whole={
        "embed": "model.embed_tokens.weight",
        "final_norm": "model.norm.weight",
        "head": "lm_head.weight",
    },
    parts={
        "attn_norm": ("input_layernorm.weight",),
        "wqkv": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        "bqkv": ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
        "q_norm": ("self_attn.q_norm.weight",),
        "k_norm": ("self_attn.k_norm.weight",),
        "wo": ("self_attn.o_proj.weight",),
        "ffn_norm": ("post_attention_layernorm.weight",),
        "w_gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        "w_down": ("mlp.down_proj.weight",),
    },
    layer="model.layers.{}.",
)


def checkpoint_digest(folder: Path) -> str:
    """SHA-256 in hex over the configuration and every weight file of the folder."""
    files = [folder / CONFIG, *sorted(folder.glob("*.safetensors")), *folder.glob(INDEX)]
    parts = [f"{file.name} {remembered_digest(file)}" for file in files if file.is_file()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class Checkpoint:
    """An open folder. ``config`` is read at once, weights when asked for.

    Raises UsageError for a folder that is damaged, of another family, or that needs something
    the decoder does not do; a tensor that would be left unused counts as such.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._raw = _read_json(folder / CONFIG, f"model {folder}")
        self._places = self._find_tensors()
        self.config = self._read_config()
        self._require_all_tensors()

    def weight(self, name: str) -> Array:
        """The named weight (see ``weights``) in float32."""
        parts = [read_tensor(self._places[source]) for source in self._sources(name)]
        return joined(self.path, self.config, name, parts)

    def store_tokenizer(self, target: Path) -> dict[str, Any] | None:
        """Copy ``tokenizer.json``, if there is one, and return the facts beside it."""
        file = self.path / TOKENIZER
        if not file.is_file():
            return None
        vocabulary = _read_json(file, f"model {self.path}")
        target.write_text(json.dumps(vocabulary), encoding="utf-8")
        eos = self._raw.get("eos_token_id")
        ends = eos if isinstance(eos, list) else [eos]
        return {
            "vocab_size": self.config.vocab_size,
            "chat_template": None,
            "bos_id": None,
            "eos_ids": [end for end in ends if isinstance(end, int)],
        }

    def _find_tensors(self) -> dict[str, Place]:
        if (self.path / SINGLE).is_file():
            files = [self.path / SINGLE]
        elif (self.path / INDEX).is_file():
            listed = _read_json(self.path / INDEX, f"model {self.path}").get("weight_map")
            if not isinstance(listed, dict) or not all(isinstance(f, str) for f in listed.values()):
                raise UsageError(f"model {self.path}: {INDEX} has no weight_map of file names")
            if bad := next((f for f in listed.values() if Path(f).name != f), None):
                raise UsageError(f"model {self.path}: {INDEX} names {bad!r}, outside the folder")
            files = [self.path / name for name in sorted(set(listed.values()))]
        else:
            pickled = next(iter([*self.path.glob("*.bin"), *self.path.glob("*.pt*")]), None)
            hint = f"; {pickled.name} is a pickle, whose code would run" if pickled else ""
            raise UsageError(f"model {self.path}: neither {SINGLE} nor {INDEX}{hint}")
        places: dict[str, Place] = {}
        for file in files:
            for name, place in read_places(file).items():
                if name in places:
                    raise UsageError(f"model {self.path}: tensor {name!r} is in two files")
                places[name] = place
        return places

    def _read_config(self) -> ModelConfig:
        family = self._raw.get("model_type")
        if family not in FAMILIES:
            raise self._unsupported(f"model_type {family!r}", ", ".join(FAMILIES))
        if self._raw.get("hidden_act", "silu") != "silu":
            raise self._unsupported(f"hidden_act {self._raw['hidden_act']!r}", "'silu'")
        if self._raw.get("mlp_bias") or self._raw.get("use_sliding_window"):
            raise self._unsupported("mlp_bias or use_sliding_window", "models without")
        if family == "llama" and self._raw.get("attention_bias"):
            raise self._unsupported("attention_bias of a Llama model", "models without")
        heads, d_model = self._count("num_attention_heads"), self._count("hidden_size")
        head_dim = self._count("head_dim", d_model // max(1, heads))
        theta, factors = self._rope(head_dim)
        return ModelConfig(
            name=self.path.name,
            n_layers=self._count("num_hidden_layers"),
            d_model=d_model,
            n_heads=heads,
            n_kv_heads=self._count("num_key_value_heads", heads),
            head_dim=head_dim,
            d_ff=self._count("intermediate_size"),
            vocab_size=self._count("vocab_size"),
            context=self._count("max_position_embeddings"),
            rope_theta=theta,
            rms_eps=self._number(self._raw, "rms_norm_eps", 1e-6),
            rope_interleaved=False,
            rope_factors=factors,
            tied=bool(self._raw.get("tie_word_embeddings", False)),
            qkv_bias="model.layers.0.self_attn.q_proj.bias" in self._places,
            qk_norm="model.layers.0.self_attn.q_norm.weight" in self._places,
        )

    def _rope(self, head_dim: int) -> tuple[float, tuple[float, ...]]:
        """Base and divisors of the frequencies; newer files keep both in ``rope_parameters``."""
        raw = self._raw.get("rope_parameters") or self._raw.get("rope_scaling") or {}
        if not isinstance(raw, dict):
            raise self._unsupported(f"rope_scaling {raw!r}", "an object")
        theta = self._number({**self._raw, **raw}, "rope_theta", 10_000.0)
        kind = raw.get("rope_type", raw.get("type", "default"))
        pairs = head_dim // 2
        if kind in ("default", None):
            return theta, ()
        factor = self._number(raw, "factor", None)
        if kind == "linear":
            return theta, (factor,) * pairs
        if kind == "llama3":
            return theta, self._llama3(raw, theta, factor, head_dim)
        raise self._unsupported(f"rope scaling {kind!r}", "'default', 'linear', 'llama3'")

    def _llama3(
        self, raw: Mapping[str, Any], theta: float, factor: float, head_dim: int
    ) -> tuple[float, ...]:
        """Llama 3.1's rule: slow frequencies by ``factor``, fast ones kept, a ramp between."""
        low = self._number(raw, "low_freq_factor", None)
        high = self._number(raw, "high_freq_factor", None)
        original = self._number(raw, "original_max_position_embeddings", None)
        divisors = []
        for pair in range(head_dim // 2):
            wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
            if wavelength < original / high:
                divisors.append(1.0)
            elif wavelength > original / low:
                divisors.append(factor)
            else:
                smooth = (original / wavelength - low) / (high - low)
                divisors.append(1 / ((1 - smooth) / factor + smooth))
        return tuple(divisors)

    def _require_all_tensors(self) -> None:
        used: set[str] = set()
        for name in self.config.tensor_shapes():
            sources = self._sources(name)
            used.update(sources)
            absent = [source for source in sources if source not in self._places]
            if absent:
                raise UsageError(f"model {self.path}: has no tensor {', '.join(absent)}")
        spare = {NAMES.whole["head"]} if self.config.tied else set()
        spare |= {n for n in self._places if n.endswith(".rotary_emb.inv_freq")}
        unused = sorted(set(self._places) - used - spare)
        if unused:
            raise self._unsupported(f"tensor {unused[0]!r}", "models without it")

    def _sources(self, name: str) -> list[str]:
        return NAMES.sources(self.config, name)

    def _count(self, key: str, default: int | None = None) -> int:
        value = self._raw.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"model {self.path}: {key} is {value!r}, not a whole number")
        return value

    def _number(self, raw: Mapping[str, Any], key: str, default: float | None) -> float:
        value = raw.get(key, default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            raise UsageError(f"model {self.path}: {key} is {value!r}, not a number")
        return float(value)

    def _unsupported(self, what: str, allowed: str) -> UsageError:
        return UsageError(f"model {self.path}: {what} is not supported; allowed: {allowed}")


def _read_json(path: Path, what: str) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_JSON:
            raise UsageError(f"{what}: {path.name} is larger than {MAX_JSON} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{what}: {path.name}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what}: {path.name} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{what}: {path.name} is not an object")
    return found
