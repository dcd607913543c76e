"""What a user does with assets: pull, find, list, clean."""

from __future__ import annotations

import shutil
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvbench.assets import cache
from kvbench.assets.catalogue import ALIASES, CATALOGUE, Asset
from kvbench.assets.digests import file_digest, remembered_digest
from kvbench.assets.fetch import Progress, fetch
from kvbench.assets.unpack import unpack
from kvbench.errors import AssetError

MANIFEST = "asset.json"

PROGRESS: ContextVar[Progress | None] = ContextVar("PROGRESS", default=None)
"""Who is told of a pull when its caller names nobody: a command sets it around its work."""


class FileFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file of an asset must be: its size in bytes and SHA-256 in hex."""

    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``asset.json``, which lies in the asset's directory: what was unpacked, and from where."""

    name: str
    package: str
    version: str
    sha256: str
    licence: str
    files: dict[str, FileFacts]


@dataclass(frozen=True, slots=True)
class Status:
    """One asset's state in the cache: ``absent``, ``pulled`` or ``damaged``; bytes on disk."""

    asset: Asset
    state: str
    bytes: int


def find(name: str) -> Asset:
    """The catalogue's entry. Raises AssetError that lists the names there are."""
    asset = CATALOGUE.get(ALIASES.get(name, name))
    if asset is None:
        raise AssetError(f"asset {name!r} is unknown; there are {', '.join(CATALOGUE)}")
    return asset


def path(name: str) -> Path:
    """Directory of a pulled asset. Raises AssetError when it is absent or damaged."""
    asset = find(name)
    directory = _directory(asset)
    state = _state(asset, deep=False)
    if state != "pulled":
        raise AssetError(f"asset {name} is {state} in {directory}: kvbench assets pull {name}")
    return directory


def ensure(name: str, on_progress: Progress | None = None) -> Path:
    """Directory of the asset, pulled now unless it is there already."""
    asset = find(name)
    if _state(asset, deep=False) == "pulled":
        return _directory(asset)
    return pull(name, on_progress)


def pull(name: str, on_progress: Progress | None = None) -> Path:
    """Download, verify and unpack an asset; return its directory.

    One that is there is verified byte for byte and left alone, or replaced if it is damaged.
    Raises AssetError, and then leaves the cache as it was.
    """
    asset = find(name)
    area, final = _area(), _directory(asset)
    with cache.locked(area, asset.name):
        if _state(asset, deep=True) == "pulled":
            return final
        # pip keeps the file twice for a moment: in its scratch space and where it was asked to.
        cache.require_space(area, 2 * asset.size + asset.unpacked, f"asset {name}")
        with cache.staging(area, asset.name) as work:
            tell = on_progress or PROGRESS.get() or _nobody
            tell(asset.name, 0, asset.size)
            archive = fetch(asset, work, tell)
            tell(asset.name, asset.size, asset.size)
            _require_digest(asset, archive)
            built = work / "built"
            built.mkdir()
            names = unpack(asset, archive, built)
            _write_manifest(asset, built, names)
            cache.publish(built, final)
    return final


def clean(name: str) -> int:
    """Remove an asset of any version, and what interrupted pulls left; return the bytes freed."""
    asset, area = find(name), _area()
    if not area.is_dir():
        return 0
    freed = 0
    with cache.locked(area, asset.name):
        for directory in area.iterdir():
            if _belongs(directory, asset):
                freed += _size(directory)
                shutil.rmtree(directory)
    return freed


def statuses(*, deep: bool = False) -> list[Status]:
    """The state of every asset; ``deep`` reads every byte, also of files left alone since."""
    return [
        Status(asset, _state(asset, deep=deep), _size(_directory(asset)))
        for asset in CATALOGUE.values()
    ]


def _nobody(_name: str, _done: int, _total: int) -> None:
    """Told of a pull that nobody watches."""


def _area() -> Path:
    return cache.cache_root() / "assets"


def _directory(asset: Asset) -> Path:
    return _area() / asset.directory


def _belongs(directory: Path, asset: Asset) -> bool:
    """Whether a directory holds some version of this asset (by its manifest)."""
    if not directory.is_dir() or directory.name.startswith("."):
        return False
    if directory.name == asset.directory:
        return True
    found = _read_manifest(directory)
    return found is not None and found.name == asset.name


def _require_digest(asset: Asset, archive: Path) -> None:
    found = file_digest(archive)
    if found != asset.sha256:
        raise AssetError(
            f"{asset.name}: {archive.name} has SHA-256 {found}, expected {asset.sha256};"
            " nothing was kept"
        )


def _write_manifest(asset: Asset, built: Path, names: list[str]) -> None:
    files = {
        name: FileFacts((built / name).stat().st_size, file_digest(built / name))
        for name in sorted(names)
    }
    manifest = Manifest(
        asset.name, asset.package, asset.version, asset.sha256, asset.licence, files
    )
    (built / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))


def _read_manifest(directory: Path) -> Manifest | None:
    try:
        return msgspec.json.decode((directory / MANIFEST).read_bytes(), type=Manifest)
    except (msgspec.DecodeError, OSError):
        return None


def _state(asset: Asset, *, deep: bool) -> str:
    """Compare sizes and digests with the manifest; ``deep`` trusts no remembered digest."""
    digest = file_digest if deep else remembered_digest
    directory = _directory(asset)
    if not directory.is_dir():
        return "absent"
    manifest = _read_manifest(directory)
    if manifest is None or not manifest.files:
        return "damaged"
    for name, facts in manifest.files.items():
        file = directory / name
        if not file.is_file() or file.stat().st_size != facts.size:
            return "damaged"
        if digest(file) != facts.sha256:
            return "damaged"
    return "pulled"


def _size(directory: Path) -> int:
    if not directory.is_dir():
        return 0
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
