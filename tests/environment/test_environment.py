"""METHOD, environment: fingerprints, what must match, telemetry, violations, privacy, doctor."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.environment import Sample, Sampler, fingerprint, fingerprint_hash, gpu, violations
from kvbench.environment.comparable import MUST_MATCH, differences, value_of
from kvbench.environment.doctor import (
    cpu_findings,
    disk_findings,
    examine,
    gpu_findings,
    memory_findings,
)
from kvbench.environment.fingerprint import git_state, machine, process, virtualization
from kvbench.environment.noise import scatter
from kvbench.environment.privacy import machine_id, salted_digest, scrub
from kvbench.environment.system import selected
from kvbench.spec import Limits
from kvbench.spec.check import is_secret


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_a_fingerprint_is_stable_and_matches_itself() -> None:
    one, two = fingerprint(), fingerprint()
    assert fingerprint_hash(one) == fingerprint_hash(two)
    assert differences(one, two) == []
    assert json.loads(json.dumps(one)) == one
    for name in MUST_MATCH:
        section, key = name.split(".")
        assert key in one[section], name


@pytest.mark.parametrize("name", MUST_MATCH)
def test_every_field_that_must_match_is_compared(name: str) -> None:
    one = fingerprint()
    two = copy.deepcopy(one)
    section, key = name.split(".")
    two[section][key] = "another"
    assert [found[0] for found in differences(one, two)] == [name]
    assert value_of(two, name) == "another" and value_of(two, "no.such") is None


def test_a_repository_says_its_revision_and_its_changes(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=n", "-c", "user.email=e", *words],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    assert git_state(tmp_path / "none") is None
    git("init")
    (tmp_path / "pyproject.toml").write_text("a")
    git("add", ".")
    git("commit", "-m", "one")
    clean = git_state(tmp_path)
    assert clean is not None and len(clean) == 40
    (tmp_path / "pyproject.toml").write_text("b")
    dirty = git_state(tmp_path)
    assert dirty is not None and dirty.startswith(f"{clean}+dirty:")
    (tmp_path / "pyproject.toml").write_text("c")
    assert git_state(tmp_path) != dirty
    git("checkout", "pyproject.toml")
    (tmp_path / "notes.txt").write_text("new")
    assert git_state(tmp_path) != clean
    assert git_state(tmp_path, ("pyproject.toml", "src")) == clean
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "new.py").write_text("new")
    assert git_state(tmp_path, ("pyproject.toml", "src")) != clean


def write(root: Path, path: str, text: str) -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def test_a_machine_is_read_from_proc_and_sys(tmp_path: Path) -> None:
    write(tmp_path, "/proc/cpuinfo", "model name\t: Fast CPU\nflags\t: fpu sse2 hypervisor\n")
    write(tmp_path, "/proc/meminfo", "MemTotal: 2097152 kB\n")
    write(tmp_path, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    write(tmp_path, "/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    found = machine(tmp_path)
    assert found["cpu"] == "Fast CPU" and found["memory_mib"] == 2048
    assert found["governor"] == "powersave" and found["huge_pages"] == "madvise"
    assert found["virtual"] == "hypervisor" and found["smt"] is None
    write(tmp_path, "/proc/version", "Linux 5.15-microsoft-standard-WSL2")
    assert virtualization(tmp_path) == "wsl"


def test_small_readers() -> None:
    assert selected("on") == "on" and selected(None) is None


def test_telemetry_sees_the_children_of_a_run() -> None:
    """The child's CPU time is the arm's, not the other processes'."""
    code = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    with Sampler(period_s=0.02) as sampler:
        subprocess.run([sys.executable, "-S", "-c", code], check=True)
    values = sampler.sample.values
    assert values["arm_cpu_s"] >= 0.3
    assert values["minor_faults"] > 0 and values["wall_s"] > 0
    assert values["other_cores"] >= 0


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (Sample({"other_cores": 0.2, "steal": 0.01, "cpu_throttles": 0}), None),
        (
            Sample({"other_cores": 5.0}),
            "other processes used 5.00 cores (allowed 1.00; kvbench doctor names them, "
            "--other-cores allows more)",
        ),
        (Sample({"steal": 0.2}), "the hypervisor took 20.0% of the CPU time (allowed 5.0%)"),
        (Sample({"cpu_throttles": 3}), "the CPU throttled 3 times (heat or power)"),
        (Sample({}, ("GPU 0: power cap",)), "throttled by GPU 0: power cap"),
        (Sample({"gpu0_other_percent": 40.0}), "another process used 40% of gpu0"),
        (Sample({"gpu0_other_percent": 2.0}), None),
    ],
)
def test_what_breaks_a_comparison(sample: Sample, said: str | None) -> None:
    """METHOD: throttling from outside the arm is INVALID; a clock that merely differs is not."""
    assert violations(sample, Limits(other_cores=1.0)) == (() if said is None else (said,))
    assert violations(Sample({"cpu_mhz": 900.0, "gpu0_sm_mhz": 300.0}), Limits()) == ()


def test_paths_and_secrets_are_scrubbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVBENCH_CACHE", "/var/cache/kv")
    home = str(Path.home())
    repo = Path("/src/kvbench")
    given_ = {
        "command": ["/src/kvbench/bin/x", "--model", f"{home}/m.gguf", "--api-key", "s3cret"],
        "joined": ["--hf-token=s3cret", f"--dir={home}"],
        "api_key": "s3cret",
        "prompt_tokens": "64",
        "cache": "/var/cache/kv/weights",
        "near": f"{home}stead/x",
        "deep": {"authorization": "Bearer s3cret"},
    }
    found = scrub(given_, repo)
    assert "s3cret" not in json.dumps(found)
    assert found["command"][:3] == ["$REPO/bin/x", "--model", "$HOME/m.gguf"]
    assert found["joined"] == ["--hf-token=$REMOVED", "--dir=$HOME"]
    assert found["cache"] == "$CACHE/weights" and found["prompt_tokens"] == "64"
    assert found["near"] == f"{home}stead/x"


@given(st.text(max_size=40))
def test_scrubbing_ordinary_text_changes_nothing(text: str) -> None:
    if str(Path.home()) not in text:
        assert scrub({"note": text})["note"] == text


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("API_KEY", True),
        ("hf-token", True),
        ("Authorization", True),
        ("password", True),
        ("prompt_tokens", False),
        ("tokens", False),
        ("tokenizers", False),
        ("keyboard", False),
    ],
)
def test_which_names_are_secret(name: str, secret: bool) -> None:
    assert is_secret(name) is secret


def test_machine_ids_are_salted_per_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine_id()
    assert one == machine_id() and len(one) == 16
    assert salted_digest("x") == salted_digest("x") != salted_digest("y")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
    assert machine_id() != one


class FakeNvml:
    """As much of NVML as is asked for; the second GPU supports nothing."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    nvmlClocksEventReasonSwPowerCap = 4  # noqa: N815
    nvmlClocksThrottleReasonHwSlowdown = 8  # noqa: N815

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlDeviceGetName": b"GPU",
            "nvmlDeviceGetClockInfo": 1500,
            "nvmlDeviceGetTemperature": 70,
            "nvmlDeviceGetPowerUsage": 300_000,
            "nvmlDeviceGetCurrentClocksEventReasons": 4,
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=12)],
            "nvmlDeviceGetProcessUtilization": [
                SimpleNamespace(pid=12, smUtil=40),
                SimpleNamespace(pid=13, smUtil=90),
            ],
        }
        if name not in answers:
            raise AttributeError(name)

        def query(handle: int, *_: object) -> Any:
            if handle == 1:
                raise self.NVMLError
            return answers[name]

        return query


def test_a_gpu_is_read_and_what_it_does_not_support_is_left_out() -> None:
    sampler = gpu.GpuSampler(FakeNvml())
    first, second = sampler.read()
    assert first == {"sm_mhz": 1500.0, "mem_mhz": 1500.0, "temp_c": 70.0, "power_w": 300.0}
    assert second == {}
    assert sampler.throttles() == [{"power cap"}, set()]
    assert sampler.processes() == [{12}, set()]
    assert sampler.busy([{12}, {12}]) == [40.0, 0.0]


FACTS = {
    "governor": "powersave",
    "no_turbo": "0",
    "boost": None,
    "smt": "1",
    "virtual": "wsl",
    "numa_nodes": "0-1",
    "huge_pages": "always",
}
GPU = {
    "name": "G",
    "driver": "1",
    "pcie_width": 8,
    "pcie_width_max": 16,
    "power_limit_w": 200.0,
    "power_default_w": 350.0,
    "persistence": 0,
    "mig": 1,
}


def test_doctor_names_each_planted_trouble_with_what_to_do() -> None:
    limits = {"cpu_quota": "150000 100000", "memory_limit": "1000"}
    found = [*cpu_findings(FACTS, limits), *memory_findings(FACTS, limits), *gpu_findings([GPU])]
    troubled = {finding.check for finding in found if finding.severity != "fine"}
    assert troubled >= {
        "governor",
        "turbo",
        "smt",
        "virtual",
        "quota",
        "numa",
        "huge-pages",
        "memory-limit",
        "gpu0-pcie",
        "gpu0-power",
        "gpu0-persistence",
        "gpu0-mig",
    }
    for finding in found:
        assert finding.severity != "warning" or finding.advice, finding


def test_doctor_is_content_with_a_good_machine(tmp_path: Path) -> None:
    good = {
        **FACTS,
        "governor": "performance",
        "no_turbo": "1",
        "smt": "0",
        "virtual": "none",
        "numa_nodes": "0",
        "huge_pages": "madvise",
    }
    limits = {"cpu_quota": "max 100000", "memory_limit": "max"}
    found = list(cpu_findings(good, limits))
    assert [finding.severity for finding in found] == ["fine"]
    (disk,) = disk_findings(tmp_path / "not" / "there")
    assert disk.measured.endswith(" ms")


def test_doctor_runs_here_and_measures(tmp_path: Path) -> None:
    checks = {finding.check: finding for finding in examine(tmp_path)}
    assert {"governor", "load", "scatter", "disk", "gpu" if not machine()["gpus"] else "gpu0"} <= (
        set(checks)
    )
    assert "cores" in checks["load"].measured and "scatter" in checks["scatter"].measured


def test_scatter_leaves_the_affinity_as_it_was() -> None:
    before = process()["affinity"]
    found = scatter([before[0]], pieces=3)
    assert found.worst >= 1 and process()["affinity"] == before
