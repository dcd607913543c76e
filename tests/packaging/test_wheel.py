"""Issue: usable from a wheel, an editable install and an uninstalled checkout alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from kvbench.bundled import published_dir, suites_dir

ROOT = Path(__file__).resolve().parents[2]
CLEAN_ENV = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}


def check(command: list[str], cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=CLEAN_ENV, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the files under version control, so that the checkout stays clean."""
    source = tmp_path_factory.mktemp("source")
    listed = check(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    check([sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(source)], source)
    (built,) = out.glob("kvbench-*.whl")
    return built


def test_the_checkout_finds_its_data_without_being_installed() -> None:
    assert suites_dir() == ROOT / "configs"
    assert (published_dir() / "context_sweep.csv").is_file()


@pytest.mark.long
def test_wheel_holds_every_file_of_the_packages_and_their_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("kvbench", "gates", "runner"):
        listed = check(["git", "ls-files", "--cached", package], ROOT).split()
        for path in map(ROOT.joinpath, listed):
            assert path.relative_to(ROOT).as_posix() in names
        assert f"{package}/py.typed" in names
    for path in (ROOT / "configs").glob("*.toml"):
        assert f"kvbench/_suites/{path.name}" in names
    for path in (ROOT / "results/published").glob("*.csv"):
        assert f"kvbench/_published/{path.name}" in names
    assert not {n for n in names if n.startswith(("tests/", "docs/", "configs/", "results/"))}


@pytest.mark.long
def test_wheel_works_in_a_fresh_environment_outside_the_checkout(
    wheel: Path, tmp_path: Path
) -> None:
    """The dependencies come from this interpreter's environment; kvbench only from the wheel."""
    fresh = tmp_path / "venv"
    venv.create(fresh, with_pip=True)
    python = fresh / "bin" / "python"
    check([str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)], tmp_path)
    (site,) = (fresh / "lib").glob("python*/site-packages")
    borrowed = next(p for p in sys.path if p.endswith("site-packages"))
    (site / "borrowed.pth").write_text(borrowed + "\n")

    where = check([str(python), "-c", "import kvbench; print(kvbench.__file__)"], tmp_path)
    assert Path(where.strip()).is_relative_to(fresh)
    kvbench = fresh / "bin" / "kvbench"
    assert "Measure:" in check([str(kvbench), "--help"], tmp_path)
    listed = json.loads(check([str(kvbench), "suites", "--json"], tmp_path))
    assert {s["name"] for s in listed} == {p.stem for p in (ROOT / "configs").glob("*.toml")}
    assert check([str(python), "-m", "kvbench", "--version"], tmp_path).startswith("kvbench ")


def test_every_runtime_dependency_has_a_lower_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for requirement in [*project["dependencies"], *(r for rs in extras.values() for r in rs)]:
        assert ">=" in requirement, requirement
