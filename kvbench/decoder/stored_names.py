"""From the decoder's names of weights to a file's tensors: what both file formats share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvbench.decoder.config import ModelConfig
from kvbench.decoder.weights import Array
from kvbench.errors import UsageError


@dataclass(frozen=True, slots=True)
class StoredNames:
    """How a format names tensors."""

    whole: Mapping[str, str]
    """``embed``, ``final_norm`` and ``head`` to a tensor's name."""
    parts: Mapping[str, tuple[str, ...]]
    """A layer's weight to the ends of the names of the tensors whose rows it joins."""
    layer: str
    """The beginning of those names; ``{}`` stands for the layer's number."""

    def sources(self, config: ModelConfig, name: str) -> list[str]:
        """Tensors whose rows, in order, are the weight ``name``."""
        if name == "head" and config.tied:
            return [self.whole["embed"]]
        if name in self.whole:
            return [self.whole[name]]
        number, part = name.split(".")
        return [self.layer.format(number) + source for source in self.parts[part]]


def joined(path: Path, config: ModelConfig, name: str, tensors: Sequence[Array]) -> Array:
    """The weight ``name`` out of its tensors. Raises UsageError for another shape."""
    array = tensors[0] if len(tensors) == 1 else np.concatenate(tensors)
    expected = config.tensor_shapes()[name]
    if array.shape != expected:
        raise UsageError(f"model {path}: {name} has shape {array.shape}, not {expected}")
    return np.ascontiguousarray(array)
