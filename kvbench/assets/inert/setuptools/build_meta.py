"""A build backend (PEP 517) that reads PKG-INFO and runs nothing of the project it is asked about.

pip resolves a source archive by asking a build backend for its metadata, and the usual backend
executes the project's setup.py to answer. This one answers from the archive's static PKG-INFO.
"""

from __future__ import annotations

import sys
from pathlib import Path


def get_requires_for_build_wheel(config_settings: object = None) -> list[str]:
    """Nothing is needed to read a text file."""
    return []


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: object = None
) -> str:
    """Write ``METADATA`` with the name and version of PKG-INFO; return its directory's name."""
    fields: dict[str, str] = {}
    for line in Path("PKG-INFO").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key, value.strip())
    name, version = fields["Name"], fields["Version"]
    target = Path(metadata_directory, f"{name}-{version}.dist-info")
    target.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    target.joinpath("METADATA").write_text(metadata, encoding="utf-8")
    return target.name


def build_wheel(*_: object, **__: object) -> str:
    """Refuse: kvbench unpacks data and installs nothing."""
    raise SystemExit("kvbench does not build source archives")


# The backend object pip names when an archive has no pyproject.toml.
__legacy__ = sys.modules[__name__]
