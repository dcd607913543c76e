"""What an engine is given to load."""

from __future__ import annotations

from kvbench.engines.serve import EngineFailure


def model_file(model: str, engine: str) -> str:
    """A GGUF file for an asset's name; a path stays as it is. Raises EngineFailure("model")."""
    if not model:
        raise EngineFailure("model", f"the suite names no model, and {engine} needs one")
    if "/" in model or model.endswith(".gguf"):
        return model
    from kvbench.decoder.model import gguf_path

    return str(gguf_path(model))
