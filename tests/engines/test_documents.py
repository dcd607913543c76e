"""docs/ENGINES.md names every engine and every setting that there is."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from kvbench.engines.arm import BUILT_IN, engine_names

DOCUMENT = (Path(__file__).parents[2] / "docs/ENGINES.md").read_text()
WITH_SETTINGS = [
    module
    for name, module in BUILT_IN.items()
    if hasattr(importlib.import_module(module), "Settings")
]


@pytest.mark.parametrize("module", WITH_SETTINGS)
def test_every_setting_is_documented(module: str) -> None:
    for name in importlib.import_module(module).Settings.__struct_fields__:
        assert f"`{name}`" in DOCUMENT, f"{module}: {name}"


def test_every_engine_is_documented() -> None:
    assert len(WITH_SETTINGS) >= 6
    for name in engine_names():
        assert f"`{name}`" in DOCUMENT, name
