"""The fingerprint: everything about machine and software that can change a measurement."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

import kvbench
from kvbench.environment import gpu, privacy, system
from kvbench.environment.system import ROOT

CHECKOUT = Path(__file__).resolve().parents[2]
_RUN = ("kvbench", "gates", "runner", "configs", "pyproject.toml", "setup.py")
"""What of the checkout decides what runs: a result or a suite beside it changes nothing."""
_LIBRARIES = ("numpy", "cupy-cuda12x", "cupy-cuda13x", "tokenizers", "gguf")


def fingerprint() -> dict[str, Any]:
    """Sections ``machine``, ``process`` and ``software``; JSON-able and scrubbed of paths."""
    found = {"machine": machine(), "process": process(), "software": software()}
    scrubbed: dict[str, Any] = privacy.scrub(found, CHECKOUT)
    return scrubbed


def fingerprint_hash(content: Any) -> str:
    """Name of a stored fingerprint: 16 hex digits of its canonical JSON."""
    data = msgspec.json.encode(content, order="sorted")
    return hashlib.sha256(data).hexdigest()[:16]


def machine(root: Path = ROOT) -> dict[str, Any]:
    """CPU, memory, kernel, GPUs, and settings of the machine that make runs differ."""
    info = system.read("/proc/cpuinfo", root)
    memory = system.field(system.read("/proc/meminfo", root), "MemTotal")
    cpu = "/sys/devices/system/cpu"
    return {
        "id": privacy.machine_id(),
        "cpu": system.field(info, "model name") or platform.processor() or platform.machine(),
        "microcode": system.field(info, "microcode"),
        "cpus": os.cpu_count(),
        "smt": system.read(f"{cpu}/smt/active", root),
        "memory_mib": int(memory.split()[0]) >> 10 if memory else None,
        "numa_nodes": system.read("/sys/devices/system/node/online", root),
        "governor": system.read(f"{cpu}/cpu0/cpufreq/scaling_governor", root),
        "no_turbo": system.read(f"{cpu}/intel_pstate/no_turbo", root),
        "boost": system.read(f"{cpu}/cpufreq/boost", root),
        "huge_pages": system.selected(
            system.read("/sys/kernel/mm/transparent_hugepage/enabled", root)
        ),
        "system": platform.system(),
        "kernel": platform.release(),
        "arch": platform.machine(),
        "virtual": virtualization(root),
        "gpus": gpu.describe(),
    }


def virtualization(root: Path = ROOT) -> str:
    """``none``, ``wsl``, the hypervisor's name, or ``hypervisor`` where it has none."""
    if "microsoft" in (system.read("/proc/version", root) or "").lower():
        return "wsl"
    flags = system.field(system.read("/proc/cpuinfo", root), "flags") or ""
    if "hypervisor" not in flags.split():
        return "none"
    vendor = system.read("/sys/class/dmi/id/sys_vendor", root)
    return vendor or system.read("/sys/hypervisor/type", root) or "hypervisor"


def process() -> dict[str, Any]:
    """Limits and placement that an arm's process inherits."""
    return {
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_nodes": system.field(system.read("/proc/self/status"), "Mems_allowed_list"),
        "cpu_quota": system.read("/sys/fs/cgroup/cpu.max"),
        "memory_limit": system.read("/sys/fs/cgroup/memory.max"),
        "nice": os.nice(0),
    }


def software() -> dict[str, Any]:
    """Versions of the harness and of the libraries that its own engines use."""
    return {
        "kvbench": kvbench.__version__,
        "revision": git_state(CHECKOUT, _RUN) if (CHECKOUT / "pyproject.toml").is_file() else None,
        "python": sys.version.split()[0],
        "implementation": sys.implementation.name,
        "libc": "-".join(platform.libc_ver()),
        "libraries": {name: found for name in _LIBRARIES if (found := _version(name))},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_state(directory: Path, parts: Sequence[str] = (":/",)) -> str | None:
    """``<revision>`` or ``<revision>+dirty:<digest of the changes>``; None outside a repository.

    Only changes to ``parts`` count, and new files there.
    """
    revision = _git(directory, "rev-parse", "HEAD")
    if revision is None:
        return None
    changes = (_git(directory, "diff", "HEAD", "--", *parts) or "") + (
        _git(directory, "ls-files", "--others", "--exclude-standard", "--", *parts) or ""
    )
    if not changes.strip():
        return revision.strip()
    return f"{revision.strip()}+dirty:{hashlib.sha256(changes.encode()).hexdigest()[:12]}"


def _git(directory: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
