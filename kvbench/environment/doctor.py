"""What makes this machine noisy, how much where that can be measured, and what to do about it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from kvbench.environment import gpu, noise
from kvbench.environment.fingerprint import machine, process
from kvbench.environment.telemetry import allowed_other_cores
from kvbench.spec import Limits

Severity = Literal["fine", "note", "warning"]


class Finding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One thing that was looked at."""

    check: str
    severity: Severity
    what: str
    measured: str = ""
    """Its size here and now, where it can be measured."""
    advice: str = ""


def examine(directory: Path) -> list[Finding]:
    """Look at everything; takes a few seconds. ``directory``: where results would be written."""
    facts, limits = machine(), process()
    return [
        *cpu_findings(facts, limits),
        *memory_findings(facts, limits),
        *load_findings(facts),
        *scatter_findings(),
        *disk_findings(directory),
        *gpu_findings(facts["gpus"]),
    ]


def cpu_findings(facts: dict[str, Any], limits: dict[str, Any]) -> Iterator[Finding]:
    """Clock policy, threads that share a core, virtual machines, quotas."""
    governor = facts["governor"]
    if governor not in (None, "performance"):
        yield Finding(
            "governor",
            "warning",
            f"the CPU's clock governor is {governor!r}",
            advice="sudo cpupower frequency-set -g performance",
        )
    elif governor is not None:
        yield Finding("governor", "fine", "the CPU's clock governor is 'performance'")
    else:
        yield Finding("governor", "note", "this system does not show the CPU's clock governor")
    if facts["no_turbo"] == "0" or facts["boost"] == "1":
        yield Finding(
            "turbo",
            "note",
            "the CPU may change its clock by itself (turbo)",
            advice="turn it off for small effects: echo 1 | sudo tee "
            "/sys/devices/system/cpu/intel_pstate/no_turbo (or 0 to cpufreq/boost)",
        )
    if facts["smt"] == "1":
        yield Finding(
            "smt",
            "note",
            "two threads share each core",
            advice="set affinity in the suite to one thread of each core",
        )
    if facts["virtual"] == "wsl":
        yield Finding(
            "virtual",
            "warning",
            "this is WSL: waits and copies cost more than on Linux itself",
            advice="measure on Linux itself, or say WSL with every figure",
        )
    elif facts["virtual"] != "none":
        yield Finding(
            "virtual",
            "note",
            f"this is a virtual machine ({facts['virtual']}): its neighbours cannot be seen, "
            "only the time they take",
            advice="use a dedicated host for small effects",
        )
    quota = limits["cpu_quota"]
    if quota is not None and not quota.startswith("max"):
        yield Finding(
            "quota",
            "warning",
            f"a control group limits the CPU ({quota}): runs are stopped when it is used up",
            advice="run without a CPU quota (docker --cpuset-cpus instead of --cpus)",
        )


def memory_findings(facts: dict[str, Any], limits: dict[str, Any]) -> Iterator[Finding]:
    """Limits on pinned memory, swap, NUMA."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        yield Finding("memlock", "fine", "memory may be pinned without limit")
    else:
        yield Finding(
            "memlock",
            "note",
            f"a process may lock {soft >> 20} MiB of memory",
            advice="CUDA pins memory by itself; for mlock raise it: ulimit -l unlimited",
        )
    available, swapped = noise.memory_mib()
    if swapped is not None and swapped > 64:
        yield Finding(
            "swap",
            "warning",
            f"{swapped} MiB are swapped out: page faults will show in the runs",
            measured=f"{available} MiB available",
            advice="close what is not needed, then: sudo swapoff -a && sudo swapon -a",
        )
    nodes = facts["numa_nodes"]
    if nodes not in (None, "0"):
        yield Finding(
            "numa",
            "note",
            f"memory lies on several NUMA nodes ({nodes})",
            advice="bind arms by affinity to the CPUs of one node (the GPU's own)",
        )
    if facts["huge_pages"] == "always":
        yield Finding(
            "huge-pages",
            "note",
            "transparent huge pages are built in the background",
            advice="echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )
    limit = limits["memory_limit"]
    if limit is not None and limit != "max":
        yield Finding("memory-limit", "note", f"a control group limits memory to {limit} bytes")


def load_findings(facts: dict[str, Any]) -> Iterator[Finding]:
    """Other processes, and time that the hypervisor gave away."""
    found = noise.load()
    allowed = allowed_other_cores(Limits())
    names = ", ".join(f"{name} {cores:.2f}" for name, cores in found.busiest)
    measured = f"{found.other_cores:.2f} of {facts['cpus']} cores" + (f": {names}" if names else "")
    if found.other_cores > allowed:
        yield Finding(
            "load",
            "warning",
            "other processes use the CPU; runs would be INVALID",
            measured=measured,
            advice=f"end them, or allow it knowingly: --other-cores {found.other_cores * 1.5:.1f}",
        )
    else:
        severity: Severity = "note" if found.other_cores > allowed / 2 else "fine"
        yield Finding("load", severity, "other processes", measured=measured)
    if found.steal > Limits().steal:
        yield Finding(
            "steal",
            "warning",
            "the hypervisor gives this machine's CPU time to others",
            measured=f"{found.steal:.1%} of the CPU time",
            advice="another instance type, or a dedicated host",
        )


def scatter_findings() -> Iterator[Finding]:
    """What pinning to one CPU is worth here."""
    free = noise.scatter()
    if not hasattr(os, "sched_setaffinity"):
        yield Finding("scatter", "note", "a fixed piece of work", f"{free.relative:.2%}")
        return
    cpu = max(os.sched_getaffinity(0))
    bound = noise.scatter([cpu])
    measured = (
        f"scatter {free.relative:.2%} free, {bound.relative:.2%} on CPU {cpu}; "
        f"worst {free.worst:.2f} and {bound.worst:.2f} x the median"
    )
    noisy = min(free.relative, bound.relative) > 0.01
    yield Finding(
        "scatter",
        "warning" if noisy else "fine",
        "the same piece of work of 10 ms, again and again",
        measured=measured,
        advice="set affinity in the suite" if bound.relative < 0.5 * free.relative else "",
    )


def disk_findings(directory: Path) -> Iterator[Finding]:
    """Every run is flushed to disk before the next one starts."""
    place = directory
    while not place.is_dir():
        place = place.parent
    seconds = noise.flush_seconds(place)
    slow = seconds > 0.1
    yield Finding(
        "disk",
        "warning" if slow else "fine",
        "flushing one journal line",
        measured=f"{1e3 * seconds:.1f} ms",
        advice="write to a local disk with --out" if slow else "",
    )


def gpu_findings(gpus: list[dict[str, Any]]) -> Iterator[Finding]:
    """PCIe below its maximum, power caps, other users of the GPU."""
    if not gpus:
        yield Finding("gpu", "note", "NVML shows no NVIDIA GPU (extra: cuda)")
    for number, facts in enumerate(gpus):
        yield from _gpu(number, facts)
    with gpu.nvml() as module:
        if module is None:
            return
        sampler = gpu.GpuSampler(module)
        for number, (row, reasons, users) in enumerate(
            zip(sampler.read(), sampler.throttles(), sampler.processes(), strict=True)
        ):
            if reasons:
                yield Finding(
                    f"gpu{number}-throttle",
                    "warning",
                    f"GPU {number} is held back: {', '.join(sorted(reasons))}",
                    measured=f"{row.get('sm_mhz', 0):.0f} MHz, {row.get('temp_c', 0):.0f} C",
                    advice="better cooling, or a lower fixed clock: nvidia-smi -lgc",
                )
            if users - {os.getpid()}:
                yield Finding(
                    f"gpu{number}-users",
                    "warning",
                    f"{len(users)} other processes compute on GPU {number}",
                    advice="end them; nvidia-smi lists them",
                )


def _gpu(number: int, facts: dict[str, Any]) -> Iterator[Finding]:
    yield Finding(f"gpu{number}", "fine", f"{facts['name']}, driver {facts['driver']}")
    width, most = facts["pcie_width"], facts["pcie_width_max"]
    if width and most and width < most:
        yield Finding(
            f"gpu{number}-pcie",
            "warning",
            f"GPU {number} has {width} PCIe lanes of {most}: copies are that much slower",
            advice="another slot, or another riser",
        )
    limit, default = facts["power_limit_w"], facts["power_default_w"]
    if limit and default and limit < default:
        yield Finding(
            f"gpu{number}-power",
            "warning",
            f"GPU {number} is capped at {limit:.0f} W of {default:.0f} W",
            advice=f"sudo nvidia-smi -i {number} -pl {default:.0f}",
        )
    if facts["persistence"] == 0:
        yield Finding(
            f"gpu{number}-persistence",
            "note",
            f"GPU {number} forgets its state between processes",
            advice=f"sudo nvidia-smi -i {number} -pm 1",
        )
    if facts["mig"]:
        yield Finding(
            f"gpu{number}-mig", "note", f"GPU {number} is divided (MIG): its link is shared"
        )
