"""One door to every model: a bundled asset, a GGUF file or a synthetic shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvbench import assets
from kvbench.assets.digests import remembered_digest
from kvbench.decoder import synthetic
from kvbench.decoder.checkpoint import checkpoint_digest
from kvbench.decoder.config import ModelConfig
from kvbench.decoder.tokenizer import Tokenizer
from kvbench.decoder.weight_cache import open_cached
from kvbench.decoder.weights import Weights
from kvbench.errors import AssetError, UsageError
from kvbench.paths import expanded


@dataclass(frozen=True, slots=True)
class Model:
    """A model ready to decode. ``digest`` (hex) identifies its weights, ``ref`` is its name."""

    ref: str
    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer | None
    digest: str


def open_model(ref: str) -> Model:
    """Open an asset's name, a file or folder, or ``synthetic:PRESET[,key=value...]``.

    An asset (``smollm2``) is pulled if it is absent. Files are ``.gguf``, folders hold a Hugging
    Face checkpoint in safetensors. Weights are converted to float32 into the cache once;
    after that opening takes a fraction of a second.
    """
    if ref.startswith(synthetic.PREFIX):
        config, seed = synthetic.parse(ref)
        weights = synthetic.SyntheticWeights(config, seed)
        return Model(ref, config, weights, None, synthetic.digest(config, seed))
    folder = expanded(ref)
    if "/" in ref and folder.is_dir():
        path, digest = folder, checkpoint_digest(folder)
    else:
        path = gguf_path(ref)
        digest = remembered_digest(path)
    config, mapped, tokenizer = open_cached(path, digest)
    return Model(ref, config, mapped, tokenizer, digest)


def gguf_path(ref: str) -> Path:
    """The GGUF file that ``ref`` names (an asset's name or a path); not for synthetic models."""
    if ref.endswith(".gguf") or "/" in ref:
        path = expanded(ref)
        if not path.is_file():
            raise UsageError(f"model {ref}: no such file")
        return path
    try:
        asset = assets.find(ref)
    except AssetError:
        raise _unknown(ref) from None
    if asset.kind != "model":
        raise _unknown(ref)
    (path,) = assets.ensure(asset.name).glob("*.gguf")
    return path


def _unknown(ref: str) -> UsageError:
    names = [a.name for a in assets.CATALOGUE.values() if a.kind == "model"]
    return UsageError(
        f"model {ref!r} is unknown; allowed: {', '.join(names)}, a path to a .gguf file, or"
        f" synthetic:PRESET with PRESET one of {', '.join(synthetic.PRESETS)}"
    )
