"""The shape of a model: what the decoder, the planner and a GPU must know before any weight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvbench.errors import UsageError

LayerKind = Literal["attention", "recurrent"]

# Far above any model there is: what a damaged file or a typing error must not get past.
_RANGES = {
    "n_layers": (1, 10_000),
    "d_model": (1, 1 << 24),
    "n_heads": (1, 1 << 16),
    "n_kv_heads": (1, 1 << 16),
    "head_dim": (1, 1 << 16),
    "d_ff": (1, 1 << 24),
    "vocab_size": (2, 1 << 26),
    "context": (1, 1 << 31),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer (RMS norm, rotary positions, grouped-query attention, SwiGLU).

    Layers of kind ``recurrent`` carry a state of ``d_model`` float32 values per sequence in place
    of a KV cache. Sizes are counts; nothing here is in bytes but the properties that say so.
    """

    name: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    vocab_size: int
    context: int
    """Largest number of positions the model was made for."""
    rope_theta: float = 10_000.0
    rms_eps: float = 1e-5
    rope_interleaved: bool = False
    """True: pairs are (0,1), (2,3), ...; False: pairs are (i, i + rope_dim/2)."""
    layer_kinds: tuple[LayerKind, ...] = field(default=(), repr=False)
    """One per layer; empty means that every layer is ``attention`` (filled in on creation)."""
    rope_dim: int = 0
    """Leading elements of a head that rotate; 0 means ``head_dim`` (filled in on creation)."""
    rope_factors: tuple[float, ...] = field(default=(), repr=False)
    """Divisors of the rotary frequencies, rope_dim/2 of them; empty means 1."""
    tied: bool = False
    """The output head is the embedding."""
    qkv_bias: bool = False
    """q, k and v have biases (Qwen2)."""
    qk_norm: bool = False
    """Each head of q and k is RMS-normed before it rotates (Qwen3)."""
    shallow_layers: int = 0
    """Synthetic models: layers from this one on add ``later_scale`` of what they would, so that
    the first ones alone agree with the whole at a wanted rate (drafts). 0: no such layer."""
    later_scale: float = 1.0

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            self._require(least <= value <= most, f"{name} = {value}: from {least} to {most}")
        self._require(
            self.n_heads % self.n_kv_heads == 0,
            f"n_heads = {self.n_heads} is not a multiple of n_kv_heads = {self.n_kv_heads}",
        )
        self._require(
            0 <= self.shallow_layers < self.n_layers,
            f"shallow = {self.shallow_layers}: fewer than its {self.n_layers} layers",
        )
        self._require(self.rope_theta > 0, f"rope_theta = {self.rope_theta}: must be positive")
        self._require(self.rms_eps > 0, f"rms_eps = {self.rms_eps}: must be positive")
        if not self.layer_kinds:
            object.__setattr__(self, "layer_kinds", ("attention",) * self.n_layers)
        self._require(
            len(self.layer_kinds) == self.n_layers,
            f"{len(self.layer_kinds)} layer kinds for {self.n_layers} layers",
        )
        if not self.rope_dim:
            object.__setattr__(self, "rope_dim", self.head_dim)
        self._require(
            self.rope_dim % 2 == 0 and 2 <= self.rope_dim <= self.head_dim,
            f"rope_dim = {self.rope_dim}: an even number up to head_dim = {self.head_dim}",
        )
        self._require(
            len(self.rope_factors) in (0, self.rope_dim // 2) and all(self.rope_factors),
            f"{len(self.rope_factors)} rope factors: {self.rope_dim // 2} non-zero ones or none",
        )

    def _require(self, holds: bool, message: str) -> None:
        if not holds:
            raise UsageError(f"model {self.name}: {message}")

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Indices of the layers that have a KV cache."""
        return tuple(i for i, kind in enumerate(self.layer_kinds) if kind == "attention")

    @property
    def q_width(self) -> int:
        """Elements of one token's queries in one layer."""
        return self.n_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of one token's K (or V) in one layer."""
        return self.n_kv_heads * self.head_dim

    def inverse_frequencies(self) -> tuple[float, ...]:
        """Angle per position of each rotating pair: theta^(-2i/rope_dim) / factor_i, in radians."""
        pairs = self.rope_dim // 2
        factors = self.rope_factors or (1.0,) * pairs
        return tuple(
            self.rope_theta ** (-2.0 * i / self.rope_dim) / factor
            for i, factor in enumerate(factors)
        )

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every weight, in the order of use; matrices are (out, in).

        ``head`` is listed even when it is tied to ``embed`` (it is then the same array).
        """
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab_size, self.d_model)}
        for i, kind in enumerate(self.layer_kinds):
            shapes[f"{i}.attn_norm"] = (self.d_model,)
            if kind == "attention":
                shapes[f"{i}.wqkv"] = (self.q_width + 2 * self.kv_width, self.d_model)
                if self.qkv_bias:
                    shapes[f"{i}.bqkv"] = (self.q_width + 2 * self.kv_width,)
                if self.qk_norm:
                    shapes[f"{i}.q_norm"] = shapes[f"{i}.k_norm"] = (self.head_dim,)
                shapes[f"{i}.wo"] = (self.d_model, self.q_width)
            else:
                shapes[f"{i}.w_rec"] = (2 * self.d_model, self.d_model)
                shapes[f"{i}.wo"] = (self.d_model, self.d_model)
            shapes[f"{i}.ffn_norm"] = (self.d_model,)
            shapes[f"{i}.w_gate_up"] = (2 * self.d_ff, self.d_model)
            shapes[f"{i}.w_down"] = (self.d_model, self.d_ff)
        shapes["final_norm"] = (self.d_model,)
        shapes["head"] = (self.vocab_size, self.d_model)
        return shapes

    def weight_count(self) -> int:
        """Number of distinct weights (a tied head counts once)."""
        total = 0
        for name, shape in self.tensor_shapes().items():
            if name == "head" and self.tied:
                continue
            size = 1
            for extent in shape:
                size *= extent
            total += size
        return total

    def weights_read_per_token(self) -> int:
        """Weights that decoding one token reads: all of them but the embedding's other rows."""
        embed = self.vocab_size * self.d_model
        return self.weight_count() - (0 if self.tied else embed) + self.d_model
