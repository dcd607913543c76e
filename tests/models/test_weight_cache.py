"""The weight cache: built once, whole or not at all, named by the file's content."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from kvbench.assets import digests
from kvbench.decoder import weight_cache
from kvbench.decoder.gguf_file import GgufFile
from kvbench.decoder.model import open_model
from tests.models.gguf_files import write_gguf


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    write_gguf(path, kind=Kind.Q8_0)
    return path


def flip(path: Path, at: int) -> None:
    """Change one bit of a file, its size and its mtime kept."""
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def entries(cache: Path) -> list[str]:
    return [p.name for p in (cache / "weights").iterdir() if not p.name.startswith(".lock-")]


def test_a_cached_model_is_opened_without_reading_the_file(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ready in a fraction of a second: neither GGUF parsing, nor dequantising, nor hashing."""
    old = time.time() - 100
    os.utime(model_file, (old, old))
    monkeypatch.setattr(digests, "SETTLED_S", -1.0)
    first = open_model(str(model_file))
    open_model(str(model_file))  # verifies what the first one built

    def forbidden(*_: object) -> None:
        raise AssertionError("the file was read again")

    monkeypatch.setattr(weight_cache, "GgufFile", forbidden)
    monkeypatch.setattr(digests, "file_digest", forbidden)
    again = open_model(str(model_file))
    assert again.config == first.config and again.digest == first.digest
    for name in first.weights:
        np.testing.assert_array_equal(first.weights[name], again.weights[name])


def test_several_processes_build_it_once(model_file: Path, own_cache: Path) -> None:
    code = (
        "import sys, hashlib\n"
        "from kvbench.decoder import weight_cache\n"
        "from kvbench.decoder.model import open_model\n"
        "real, built = weight_cache._build, []\n"
        "weight_cache._build = lambda *a: (built.append(1), real(*a))[1]\n"
        "m = open_model(sys.argv[1])\n"
        "sha = hashlib.sha256(b''.join(w.tobytes() for w in m.weights.values())).hexdigest()\n"
        "print(len(built), sha)\n"
    )
    command = [sys.executable, "-c", code, str(model_file)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    answers = [child.communicate()[0].split() for child in children]
    assert sorted(int(built) for built, _ in answers) == [0, 0, 0, 1]
    assert len({sha for _, sha in answers}) == 1 and len(entries(own_cache)) == 1


def test_killed_while_building(model_file: Path, own_cache: Path) -> None:
    code = (
        "import sys, time\n"
        "from kvbench.decoder import gguf_file\n"
        "from kvbench.decoder.model import open_model\n"
        "real = gguf_file.GgufFile.weight\n"
        "def slow(self, name):\n"
        "    if name == 'final_norm':\n"
        "        print('half', flush=True); time.sleep(60)\n"
        "    return real(self, name)\n"
        "gguf_file.GgufFile.weight = slow\n"
        "open_model(sys.argv[1])\n"
    )
    command = [sys.executable, "-c", code, str(model_file)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "half\n"
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert [name.startswith(".staging-") for name in entries(own_cache)] == [True]
    model = open_model(str(model_file))
    assert np.isfinite(model.weights["final_norm"]).all()
    assert [name.startswith(".staging-") for name in entries(own_cache)] == [False]


@pytest.mark.parametrize(
    "damage",
    ["shorter", "a bit of a weight", "no index", "broken index", "another index", "tokenizer"],
)
def test_a_damaged_entry_is_built_again(model_file: Path, own_cache: Path, damage: str) -> None:
    open_model(str(model_file))
    (directory,) = (own_cache / "weights").glob("[!.]*")
    index, weights = directory / weight_cache.INDEX, directory / weight_cache.WEIGHTS
    if damage == "shorter":
        os.truncate(weights, weights.stat().st_size - 64)
    elif damage == "a bit of a weight":
        flip(weights, weights.stat().st_size // 2)
    elif damage == "tokenizer":
        (directory / weight_cache.TOKENIZER).unlink()
    elif damage == "another index":
        index.write_text(index.read_text().replace('"n_layers": ', '"n_layers": 1'))
    elif damage == "no index":
        index.unlink()
    else:
        index.write_text("{")
    expected = GgufFile(model_file)
    model = open_model(str(model_file))
    for name in model.weights:
        np.testing.assert_array_equal(model.weights[name], expected.weight(name))


def test_a_file_changed_behind_its_times_is_noticed(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same path, size and mtime, other content: ctime tells."""
    monkeypatch.setattr(digests, "SETTLED_S", -1.0)
    before, stat = open_model(str(model_file)), model_file.stat()
    content = bytearray(model_file.read_bytes())
    content[-100] ^= 1
    model_file.write_bytes(content)
    os.utime(model_file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = open_model(str(model_file))
    assert model_file.stat().st_mtime_ns == stat.st_mtime_ns
    assert after.digest != before.digest
    assert any(not np.array_equal(before.weights[n], after.weights[n]) for n in before.weights)


def test_a_fresh_file_is_not_remembered(model_file: Path, own_cache: Path) -> None:
    """A second write within the same tick of the clock could not be told from the first."""
    digests.remembered_digest(model_file)
    assert not (own_cache / "digests").exists()


def test_a_note_that_was_damaged_is_ignored(
    model_file: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "SETTLED_S", -1.0)
    digest = digests.remembered_digest(model_file)
    (note,) = (own_cache / "digests").iterdir()
    for content in (b"", b"abc", b"\xff" * 64, b"z" * 64):
        note.write_bytes(content)
        assert digests.remembered_digest(model_file) == digest


def test_clean(model_file: Path, own_cache: Path) -> None:
    model = open_model(str(model_file))
    assert weight_cache.clean() > 0 and entries(own_cache) == []
    assert float(model.weights["final_norm"][0]) > 0, "an open map stays valid"
    assert weight_cache.clean() == 0


@pytest.mark.model
def test_smollm2_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    model = open_model("smollm2")
    c = model.config
    assert (c.n_layers, c.d_model, c.n_heads, c.n_kv_heads, c.head_dim) == (30, 576, 9, 3, 64)
    assert (c.d_ff, c.vocab_size, c.context, c.rope_theta) == (1536, 49152, 8192, 100_000.0)
    assert c.tied and c.rope_interleaved and model.weights["head"] is model.weights["embed"]
    assert sum(w.size for n, w in model.weights.items() if n != "head") == c.weight_count()
    assert open_model("smollm2-135m").digest == model.digest
