"""Models of any shape from a seed: no files, the same bits on every machine.

Weights come from raw Philox output by integer arithmetic and one correctly rounded float32
product, so neither a library's normal distribution nor a machine's libm takes part. Scales are
chosen so that greedy output does not settle on one repeated token: the head is not tied to the
embedding, and attention scores are spread widely enough that the history decides the next token.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

import numpy as np
import psutil

from kvbench.decoder.config import LayerKind, ModelConfig
from kvbench.decoder.weights import Array, aligned_empty
from kvbench.errors import SettingError, UsageError

PREFIX = "synthetic:"

RECIPE = 1
"""Changes whenever the same seed would give other weights; part of the digest."""

SCORE_STD = 3.0
"""Standard deviation of attention scores before the softmax: a few keys win, which ones varies."""

LOGIT_STD = 4.0
"""Standard deviation of the logits: the spread of a trained model's, so margins look alike."""


def _hybrid(n_layers: int, every: int) -> tuple[LayerKind, ...]:
    """Attention in the last layer of each group of ``every`` layers, recurrent elsewhere."""
    return tuple("attention" if (i + 1) % every == 0 else "recurrent" for i in range(n_layers))


PRESETS: Mapping[str, ModelConfig] = {
    "tiny": ModelConfig("tiny", 2, 64, 4, 2, 16, 128, 512, 4096),
    "small": ModelConfig("small", 8, 256, 8, 2, 32, 768, 4096, 16384),
    "tiny-hybrid": ModelConfig(
        "tiny-hybrid", 4, 64, 4, 2, 16, 128, 512, 4096, layer_kinds=_hybrid(4, 2)
    ),
    "dense-8b": ModelConfig(
        "dense-8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072, rope_theta=500_000.0
    ),
    "hybrid-27b": ModelConfig(
        "hybrid-27b",
        64,
        5120,
        24,
        4,
        256,
        17408,
        248320,
        262144,
        rope_theta=10_000_000.0,
        layer_kinds=_hybrid(64, 4),
        rope_dim=64,
    ),
    "slice-70b": ModelConfig(
        "slice-70b", 8, 8192, 64, 8, 128, 28672, 128256, 131072, rope_theta=500_000.0
    ),
}

AGREEMENT: Mapping[tuple[str, int, int], Mapping[int, int]] = {
    ("tiny", 4, 2): {30: 936, 40: 693, 50: 522, 60: 385, 70: 279, 80: 182, 90: 78},
    ("small", 8, 2): {30: 400, 40: 300, 50: 236, 60: 178, 70: 121, 80: 78, 90: 37},
}
"""(preset, layers, shallow) -> agreement in percent -> ``later`` in thousandths, for seed 0.

Measured by ``kvbench.decoder.agreement``, which finds the value for any other shape."""

_KEYS = {
    "layers": "n_layers",
    "d_model": "d_model",
    "heads": "n_heads",
    "kv_heads": "n_kv_heads",
    "head_dim": "head_dim",
    "d_ff": "d_ff",
    "vocab": "vocab_size",
    "context": "context",
}


def parse(ref: str) -> tuple[ModelConfig, int]:
    """``synthetic:PRESET[,key=value...]`` as a configuration and a seed.

    Keys are layers, d_model, heads, kv_heads, head_dim, d_ff, vocab, context, seed,
    attention_every=N (attention in each N-th layer only, recurrent layers between; 1 = all), and
    for drafts shallow=K with later=T (layers from K on add T thousandths of what they would) or
    with agree=P (so that the first K layers alone choose P% of the tokens as the whole does).
    Raises SettingError for an unknown preset or key and for a value that is not a whole number.
    """
    preset, *settings = ref.removeprefix(PREFIX).split(",")
    if preset not in PRESETS:
        raise SettingError("model", ref, f"synthetic presets are {', '.join(PRESETS)}", "model")
    config, seed, every = PRESETS[preset], 0, None
    changes: dict[str, int] = {}
    draft: dict[str, int] = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        value = _whole_number(ref, key, text)
        if key == "seed":
            seed = value
        elif key == "attention_every":
            every = value
        elif key in ("shallow", "later", "agree"):
            draft[key] = value
        elif key in _KEYS:
            changes[_KEYS[key]] = value
        else:
            allowed = ", ".join([*_KEYS, "attention_every", "seed", "shallow", "later", "agree"])
            raise SettingError("model", ref, f"{key!r} is unknown; keys are {allowed}", "model")
    rope_dim = min(config.rope_dim, changes.get("head_dim", config.head_dim))
    fields = asdict(config) | changes | {"name": ref.removeprefix(PREFIX), "layer_kinds": ()}
    fields["rope_dim"] = 0 if config.rope_dim == config.head_dim else rope_dim
    fields |= _drafted(ref, preset, fields["n_layers"], draft, changes, seed)
    # Ranges are checked here, before anything is made whose size follows from them.
    shaped = ModelConfig(**fields)
    if every is not None:
        return replace(shaped, layer_kinds=_hybrid(shaped.n_layers, every)), seed
    kinds = config.layer_kinds
    repeated = tuple(kinds[i % len(kinds)] for i in range(shaped.n_layers))
    return replace(shaped, layer_kinds=repeated), seed


def _drafted(
    ref: str,
    preset: str,
    n_layers: int,
    draft: Mapping[str, int],
    changes: Mapping[str, int],
    seed: int,
) -> dict[str, float]:
    """Configuration fields that make the first layers agree with the whole."""
    if not draft:
        return {}
    if "shallow" not in draft or ("later" in draft) == ("agree" in draft):
        raise SettingError("model", ref, "shallow=K goes with one of later=T, agree=P", "model")
    later = draft.get("later")
    if later is None:
        reshaped = bool(changes.keys() - {"n_layers"}) or seed != 0
        known = {} if reshaped else AGREEMENT.get((preset, n_layers, draft["shallow"]), {})
        later = known.get(draft["agree"])
        if later is None:
            shapes = "; ".join(
                f"{name},layers={layers},shallow={k}: {', '.join(map(str, rates))}"
                for (name, layers, k), rates in AGREEMENT.items()
            )
            allowed = f"agree=P is known for seed 0 and {shapes}; later=T does for any model"
            raise SettingError("model", ref, allowed, "model")
    return {"shallow_layers": draft["shallow"], "later_scale": later / 1000}


def _whole_number(ref: str, key: str, text: str) -> int:
    least = 0 if key == "seed" else 1
    if not text.isascii() or not text.isdecimal() or int(text) < least or len(text) > 18:
        allowed = f"{key}= takes a whole number from {least}, not {text!r}"
        raise SettingError("model", ref, allowed, "model")
    return int(text)


def digest(config: ModelConfig, seed: int) -> str:
    """SHA-256 (hex) of everything the weights follow from; equal digests mean equal bits."""
    facts = asdict(replace(config, name=""))
    if not config.shallow_layers:  # as before these fields existed
        del facts["shallow_layers"], facts["later_scale"]
    recipe = {"recipe": RECIPE, "seed": seed, "config": facts}
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


def tensor_std(config: ModelConfig, name: str) -> float:
    """Standard deviation the named matrix is drawn with (its rows q and k: see ``SCORE_STD``)."""
    fan_in = config.tensor_shapes()[name][-1]
    if name == "embed":
        return 1.0
    if name == "head":
        return LOGIT_STD / math.sqrt(fan_in)
    layer, _, part = name.partition(".")
    adds = part in ("wo", "w_down") and 0 < config.shallow_layers <= int(layer)
    return (config.later_scale if adds else 1.0) / math.sqrt(fan_in)


def uniform(seed: int, name: str, shape: tuple[int, ...]) -> Array:
    """Uniform values of unit variance, from 16 bits each; the same bits everywhere."""
    key = hashlib.sha256(f"kvbench {RECIPE} {seed} {name}".encode()).digest()
    generator = np.random.Philox(key=np.frombuffer(key[:16], dtype="<u8"))
    count = math.prod(shape)
    bits = generator.random_raw(-(-count // 4)).astype("<u8", copy=False).view("<u2")[:count]
    values = aligned_empty(shape)
    flat = values.reshape(-1)
    np.subtract(bits, np.float32(32767.5), out=flat, dtype=np.float32)
    np.multiply(flat, np.float32(math.sqrt(12.0) / 65536.0), out=flat)
    return values


def make_tensor(config: ModelConfig, seed: int, name: str) -> Array:
    """The named weight, drawn anew."""
    shape = config.tensor_shapes()[name]
    values = uniform(seed, name, shape)
    if len(shape) == 1:
        # Norm gains between 0.5 and 1.5: a gain that was not applied must show.
        np.multiply(values, np.float32(0.5 / math.sqrt(3.0)), out=values)
        np.add(values, np.float32(1.0), out=values)
    else:
        np.multiply(values, np.float32(tensor_std(config, name)), out=values)
    if name.endswith(".wqkv"):
        sharp = values[: config.q_width + config.kv_width]
        np.multiply(sharp, np.float32(math.sqrt(SCORE_STD)), out=sharp)
    values.flags.writeable = False
    return values


class SyntheticWeights(Mapping[str, Array]):
    """The weights of a synthetic model, each drawn when it is first asked for, then kept.

    Nothing is drawn at creation, so a shape too large for this machine still has a configuration;
    asking for one of its weights raises UsageError when the whole set would not fit in memory.
    """

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.config, self.seed = config, seed
        self._names = list(config.tensor_shapes())
        self._drawn: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._drawn:
            if name not in self._names:
                raise KeyError(name)
            if not self._drawn:
                self._require_room()
            self._drawn[name] = make_tensor(self.config, self.seed, name)
        return self._drawn[name]

    def _require_room(self) -> None:
        needed, free = 4 * self.config.weight_count(), psutil.virtual_memory().available
        if needed > free:
            raise UsageError(
                f"model synthetic:{self.config.name} needs {needed / 2**30:.1f} GiB of host memory"
                f" for its weights, {free / 2**30:.1f} GiB are free: choose a smaller shape,"
                " or a device that makes them itself"
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
