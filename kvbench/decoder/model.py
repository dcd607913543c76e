"""One door to every model: a bundled asset, a GGUF file or a synthetic shape."""

from __future__ import annotations

from dataclasses import dataclass

from kvbench.decoder import synthetic
from kvbench.decoder.config import ModelConfig
from kvbench.decoder.tokenizer import Tokenizer
from kvbench.decoder.weights import Weights
from kvbench.errors import UsageError


@dataclass(frozen=True, slots=True)
class Model:
    """A model ready to decode. ``digest`` (hex) identifies its weights, ``ref`` is its name."""

    ref: str
    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer | None
    digest: str


def open_model(ref: str) -> Model:
    """Open ``smollm2-135m`` (an asset), a ``.gguf`` path or ``synthetic:PRESET[,key=value...]``."""
    if ref.startswith(synthetic.PREFIX):
        config, seed = synthetic.parse(ref)
        weights = synthetic.SyntheticWeights(config, seed)
        return Model(ref, config, weights, None, synthetic.digest(config, seed))
    raise UsageError(f"model {ref!r}: GGUF files are not readable yet")
