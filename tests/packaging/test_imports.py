"""Every module can be the first that is imported: no circle hides behind another order."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import gates
import kvbench
import kvbench.device.cuda
import runner


def modules(package: object) -> list[str]:
    name: str = package.__name__  # type: ignore[attr-defined]
    found = pkgutil.walk_packages(package.__path__, f"{name}.")  # type: ignore[attr-defined]
    return [name, *(m.name for m in found if not m.name.endswith("__main__"))]


def import_each_first(names: list[str]) -> None:
    """Import each as if nothing of kvbench had been imported yet. Run it in its own process."""
    for name in names:
        for loaded in list(sys.modules):
            if loaded.partition(".")[0] in ("kvbench", "gates", "runner"):
                del sys.modules[loaded]
        importlib.import_module(name)


@pytest.mark.parametrize(
    "package",
    [
        pytest.param(kvbench.device.cuda, id="cuda"),  # which no test imports without a GPU
        pytest.param(kvbench, id="kvbench", marks=pytest.mark.long),
        pytest.param(gates, id="gates", marks=pytest.mark.long),
        pytest.param(runner, id="runner", marks=pytest.mark.long),
    ],
)
def test_every_module_can_be_imported_first(package: object) -> None:
    code = (
        "from tests.packaging.test_imports import import_each_first;"
        f"import_each_first({modules(package)!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
