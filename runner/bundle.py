"""The evidence bundle: one zip with everything that a verdict rests on, and its judgement again."""

from __future__ import annotations

import hashlib
import lzma
import math
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec

import kvbench
from kvbench.errors import UsageError
from kvbench.paths import refuse_device
from kvbench.records import Comparison, Summary
from runner.store import judge_again, load_summary

BUNDLE_VERSION = 1
MANIFEST = "manifest.json"
MAX_FILE_BYTES = 1 << 30
MAX_TOTAL_BYTES = 4 << 30
_EPOCH = (1980, 1, 1, 0, 0, 0)
_WANTED = ("plan.json", "journal.jsonl", "summary.json", "report.md", "report.html")
_FOLDERS = ("environments", "details")


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is in the bundle; the hashes are over the files' bytes."""

    v: int
    run: str
    kvbench: str
    sha256: dict[str, str]


class Verified(NamedTuple):
    """What the bundle claims, what its raw runs say, and where the two differ."""

    claimed: Summary
    found: Summary
    differences: list[str]


def write_bundle(directory: Path, target: Path) -> Path:
    """Pack a stored experiment into ``target``. The same experiment gives the same bytes.

    Raises ``UsageError`` if a part is missing or damaged: the journal is judged before packing.
    """
    summary = load_summary(directory)
    if differs := differences(summary, judge_again(directory)):
        raise UsageError(f"{directory}: summary.json is not what its journal gives: {differs[0]}")
    files = {str(path.relative_to(directory)): path.read_bytes() for path in _files(directory)}
    manifest = Manifest(
        v=BUNDLE_VERSION,
        run=summary.run,
        kvbench=kvbench.__version__,
        sha256={name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    )
    temporary = target.with_name(target.name + ".tmp")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
            for name, data in [(MANIFEST, content), *sorted(files.items())]:
                info = zipfile.ZipInfo(name, _EPOCH)
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, data)
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(f"{target}: cannot write the bundle: {error.strerror}") from error
    return target


def _files(directory: Path) -> Iterator[Path]:
    for name in _WANTED:
        if (directory / name).is_file():
            yield directory / name
    for folder in _FOLDERS:
        yield from sorted((directory / folder).glob("*.json"))


_DAMAGE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,  # said to be encrypted, or packed in a way that is not implemented
    ValueError,  # a name or an offset that cannot be
    struct.error,
)
"""What reading a zip file raises when a byte of it is another one."""


def verify_bundle(path: Path) -> Verified:
    """Judge a bundle from its raw runs alone, offline.

    Raises ``UsageError`` for what is no bundle, or was changed after it was packed.
    """
    refuse_device(path)
    with tempfile.TemporaryDirectory(prefix="kvbench-verify-") as scratch:
        directory = Path(scratch)
        try:
            with zipfile.ZipFile(path) as archive:
                _unpack(archive, directory, path)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
        except _DAMAGE as error:
            raise UsageError(f"{path}: not a bundle: {error}") from error
        try:
            claimed = load_summary(directory)
            found = judge_again(directory)
        except UsageError as error:  # the user knows the bundle, not where it was unpacked
            raise UsageError(str(error).replace(f"{directory}/", f"{path}: ")) from error
    return Verified(claimed, found, differences(claimed, found))


def _unpack(archive: zipfile.ZipFile, directory: Path, path: Path) -> None:
    infos = {info.filename: info for info in archive.infolist()}
    if len(infos) != len(archive.infolist()):
        raise UsageError(f"{path}: a name appears twice")
    if MANIFEST not in infos:
        raise UsageError(f"{path}: not a bundle: it has no {MANIFEST}")
    if sum(info.file_size for info in infos.values()) > MAX_TOTAL_BYTES:
        raise UsageError(f"{path}: unpacks to more than {MAX_TOTAL_BYTES >> 30} GiB")
    try:
        manifest = msgspec.json.decode(archive.read(MANIFEST), type=Manifest)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: its {MANIFEST} is damaged: {error}") from error
    if manifest.v != BUNDLE_VERSION:
        raise UsageError(f"{path}: version {manifest.v}; this kvbench reads {BUNDLE_VERSION}")
    if set(infos) - {MANIFEST} != set(manifest.sha256):
        odd = sorted((set(infos) - {MANIFEST}) ^ set(manifest.sha256))
        raise UsageError(f"{path}: its files are not those of its {MANIFEST}: {odd[0]}")
    for name, digest in manifest.sha256.items():
        _unpack_one(archive, infos[name], digest, directory, path)


def _unpack_one(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, digest: str, directory: Path, path: Path
) -> None:
    parts = PurePosixPath(info.filename).parts
    allowed = info.filename in _WANTED or (
        len(parts) == 2 and parts[0] in _FOLDERS and parts[1].endswith(".json")
    )
    if not allowed or ".." in parts or info.file_size > MAX_FILE_BYTES:
        raise UsageError(f"{path}: {info.filename!r} does not belong into a bundle")
    data = archive.read(info)
    if hashlib.sha256(data).hexdigest() != digest:
        raise UsageError(f"{path}: {info.filename} was changed after it was packed")
    target = directory / info.filename
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(data)


def differences(claimed: Summary, found: Summary) -> list[str]:
    """Where two judgements of one experiment differ, in words; the report's text is not judged."""
    differs = []
    if claimed.exit_code != found.exit_code:
        differs.append(f"exit code {claimed.exit_code} is claimed, {found.exit_code} is found")
    for cell, again in zip(claimed.cells, found.cells, strict=False):
        if cell.gate.outcome != again.gate.outcome:
            differs.append(f"{cell.name}: gate {cell.gate.outcome} against {again.gate.outcome}")
        for one, two in zip(cell.comparisons, again.comparisons, strict=False):
            differs += _comparison(cell.name, one, two)
    same_version = claimed.kvbench == found.kvbench  # another one may know more or say it otherwise
    if not differs and same_version and not _same(*map(msgspec.to_builtins, (claimed, found))):
        differs.append("the same verdicts, but other details (runs, telemetry or counters)")
    return differs


def _comparison(cell: str, one: Comparison, two: Comparison) -> list[str]:
    where = f"{cell}: {one.arm}"
    if one.verdict is not two.verdict:
        return [f"{where}: {one.verdict} is claimed, {two.verdict} is found"]
    if not _same((one.ratio, one.ci95), (two.ratio, two.ci95)):
        return [f"{where}: ratio {one.ratio} {one.ci95} against {two.ratio} {two.ci95}"]
    return []


def _same(one: Any, two: Any) -> bool:
    """Equal, but for the last bits of figures: another libm rounds exp and log its own way."""
    if isinstance(one, float) and isinstance(two, float):
        return math.isclose(one, two, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(map(_same, one, two))
    return bool(one == two)
