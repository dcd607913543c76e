"""A model's weights in GPU memory: synthetic ones are drawn there, a file's are converted."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping
from typing import Any

from kvbench.decoder import synthetic
from kvbench.decoder.config import ModelConfig
from kvbench.device.cuda.device import CudaDevice
from kvbench.device.cuda.source import WeightType
from kvbench.device.cuda.weights import DeviceWeights


def device_weights(
    config: ModelConfig,
    weights: Mapping[str, Any],
    device: CudaDevice,
    kind: WeightType,
    layers: Collection[int],
) -> DeviceWeights:
    """The weights of ``layers``, embedding and head as ``kind`` on ``device``; gains in float32.

    A synthetic model has the float32 values of the host's version before the conversion, and
    none of them passes through host memory.
    """
    held = DeviceWeights(device, kind)
    for name in config.tensor_shapes():
        layer = name.partition(".")[0]
        if layer.isdecimal() and int(layer) not in layers:
            continue
        if name == "head" and config.tied:
            held.alias("head", "embed")
        elif isinstance(weights, synthetic.SyntheticWeights):
            draw_on_device(held, config, weights.seed, name)
        else:
            held.upload(name, weights[name])
    held.finish()
    return held


def draw_on_device(weights: DeviceWeights, config: ModelConfig, seed: int, name: str) -> None:
    """The named weight as ``synthetic.make_tensor`` draws it."""
    shape = config.tensor_shapes()[name]
    recipe = f"kvbench {synthetic.RECIPE} {seed} {name}"
    key = hashlib.sha256(recipe.encode()).digest()[:16]
    if len(shape) == 1:
        weights.draw(name, shape, key, 0.5 / math.sqrt(3.0), offset=1.0)
        return
    sharp = (0, 1.0)
    if name.endswith(".wqkv"):
        rows = config.q_width + config.kv_width
        sharp = (rows * shape[1], math.sqrt(synthetic.SCORE_STD))
    weights.draw(name, shape, key, synthetic.tensor_std(config, name), sharp=sharp)
