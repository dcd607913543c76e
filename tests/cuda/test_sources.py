"""The kernel sources without a GPU: they compile, and their arguments are what Python packs."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvbench.device import kernels
from kvbench.device.cuda import arguments, attention, driver, kernel_set, tiles
from kvbench.device.cuda.products import MODES
from kvbench.device.cuda.source import (
    BLOCKED,
    BLOCKED_CUTS,
    CUTS,
    LANE_VALUES,
    MACRO,
    ROW_VARIANTS,
    SHARED,
    Cut,
    Defines,
    cut_for,
    cuts_of,
    options,
    sample_variants,
    source,
)
from kvbench.errors import UsageError

FILES = ("matvec", "tile", "attend", "rows", "tokens", "weights")
TYPES: dict[str, type] = {
    "int": ctypes.c_int,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "float": ctypes.c_float,
}


def structures() -> dict[str, type[ctypes.Structure]]:
    """Argument structures in the sources, and those that one holds, as ctypes lays them out."""
    found: dict[str, type[ctypes.Structure]] = {}
    for file in FILES:
        text = source(file)
        for name, body in re.findall(r"^struct (\w+) \{\n(.*?)^\};", text, re.S | re.M):
            argument = rf"\(const {name} |^  {name} \w+\[\w+\];"
            if not re.search(argument, text, re.M):
                continue  # neither a kernel's argument nor part of one
            fields: list[tuple[str, type]] = []
            for declaration in re.sub(r"//[^\n]*", "", body).split(";"):
                match = re.fullmatch(r"\s*(?:const )?(\w+)(\*?) ([\w, \[\]]+)\s*", declaration)
                if match is None:
                    assert not declaration.strip() or "#" in declaration, declaration
                    continue
                kind: Any = ctypes.c_void_p if match[2] else (TYPES | found)[match[1]]
                for field in match[3].split(", "):
                    bare, _, extent = field.partition("[")
                    fields.append((bare, kind * number(extent[:-1], text) if extent else kind))
            found[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return found


def number(extent: str, text: str) -> int:
    """An array's extent: a number, or the name of one."""
    defined = re.search(rf"^#define {extent} (\d+)\b", text, re.M)
    return int(defined[1] if defined else extent)


def layout(kind: Any) -> Any:
    """What a type is made of: names and types of fields, in order."""
    if issubclass(kind, ctypes.Structure):
        return [("in" if n == "values" else n, layout(t)) for n, t in kind._fields_]
    if issubclass(kind, ctypes.Array):
        return (kind._length_, layout(kind._type_))
    return kind


def test_arguments_match_the_sources() -> None:
    """A field added on one side only would shift every argument after it."""
    packed = {
        name: cls
        for name, cls in vars(arguments).items()
        if isinstance(cls, type) and issubclass(cls, ctypes.Structure) and hasattr(cls, "_fields_")
    }
    declared = structures()
    assert packed.keys() == declared.keys()
    for name, cls in packed.items():
        assert layout(cls) == layout(declared[name]), name


def test_modes_are_numbered_as_in_the_sources() -> None:
    declared = re.search(r"enum Mode \{ (.*?) \};", source("matvec"))
    assert declared is not None and declared[1].lower().split(", ") == list(MODES)


SHARED_NUMBERS: dict[str, dict[str, int]] = {
    "attend": {
        "CHUNK": attention.CHUNK_ROWS, "SPANS": attention.SPANS, "COLUMNS": attention.COLUMNS,
        "SLICE": attention.SLICE, "WAYS": attention.WAYS, "FOLDED": attention.FOLDED,
        "STATE_COLUMNS": kernels.STATE_COLUMNS, "TOKEN": kernels.TOKEN,
        "POSITION": kernels.POSITION, "CELL": kernels.CELL, "STREAM": kernels.STREAM,
    },
    "tokens": {"PIECES": kernel_set.PIECES},
    "tile": {
        "TILE": kernels.TILE, "ROWS": tiles.ROWS, "DEPTH": tiles.DEPTH, "STAGES": tiles.STAGES,
        "WARPS": tiles.THREADS // 32, "SPLIT_WARPS": tiles.SPLIT_THREADS // 32,
    },
}  # fmt: skip


@pytest.mark.parametrize("file", SHARED_NUMBERS)
def test_numbers_that_both_sides_know_are_equal(file: str) -> None:
    declared = dict(re.findall(r"^#define (\w+) (\d+)\b", source(file), re.M))
    assert {name: int(declared[name]) for name in SHARED_NUMBERS[file]} == SHARED_NUMBERS[file]


def test_a_lanes_values_are_as_in_the_sources() -> None:
    found = re.findall(r"^#(?:el)?(?:if|se).*?\n#define VPL (\d+)", source("matvec"), re.M)
    assert sorted(map(int, found)) == sorted(LANE_VALUES.values())


def nvrtc_compile(text: str, defines: Defines, arch: str) -> str | None:
    """None, or the compiler's log; skips when there is no NVRTC."""
    try:
        from nvidia import cuda_nvrtc
    except ImportError:
        pytest.skip("neither nvcc nor nvidia-cuda-nvrtc-cu12 is installed")
    folder = Path(next(iter(cuda_nvrtc.__path__))) / "lib"
    library = ctypes.CDLL(str(next(folder.glob("libnvrtc.so.*"))))
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"k.cu", 0, None, None)
    flags = [f.encode() for f in (*options(defines), f"--gpu-architecture={arch}")]
    status = library.nvrtcCompileProgram(
        program, len(flags), (ctypes.c_char_p * len(flags))(*flags)
    )
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return None if status == 0 else log.value.decode()


def nvcc_compile(text: str, defines: Defines, arch: str, folder: Path) -> tuple[str | None, str]:
    """(None, or the compiler's messages; what ptxas says of the result)."""
    file = folder / "kernel.cu"
    file.write_text(text)
    flags = [f"-arch={arch}", "-cubin", "-Xptxas", "-v", *options(defines)]
    command = ["nvcc", *flags, "-o", str(folder / "k.cubin"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr, done.stderr


def compile_error(text: str, defines: Defines, folder: Path, arch: str = "sm_90") -> str | None:
    if shutil.which("nvcc"):
        return nvcc_compile(text, defines, arch, folder)[0]
    return nvrtc_compile(text, defines, arch)


ROOMS = {"sm_90": SHARED, "sm_80": 163 << 10, "sm_86": 99 << 10}
"""Kinds of GPU, and the shared memory that a block can have there."""
SAMPLES = [(arch, *v) for arch, room in ROOMS.items() for v in sample_variants(room)]
QUICK = [v for v in SAMPLES if ("ROWS", "1") in v[2] or v[1] != "matvec"][::5]


@pytest.mark.parametrize("arch,file,defines", QUICK, ids=str)
def test_kernels_compile(arch: str, file: str, defines: Defines, tmp_path: Path) -> None:
    assert compile_error(source(file), defines, tmp_path, arch) is None


@pytest.mark.long
@pytest.mark.parametrize("arch,file,defines", SAMPLES, ids=str)
def test_every_variant_compiles(arch: str, file: str, defines: Defines, tmp_path: Path) -> None:
    assert compile_error(source(file), defines, tmp_path, arch) is None


@pytest.mark.parametrize("arch,file,defines", [v for v in QUICK if v[1] == "matvec"], ids=str)
def test_declared_shared_memory(arch: str, file: str, defines: Defines, tmp_path: Path) -> None:
    """What a launch leaves free for it is what the compiler takes, or a little more."""
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    error, said = nvcc_compile(source(file), defines, arch, tmp_path)
    assert error is None
    taken = re.search(r"(\d+) bytes smem", said)
    assert taken is not None, said
    given = dict(defines)
    names = ("WARPS", "NR", "DEPTH", "PIECE", "TILE", "EARLY")
    cut = Cut(*(int(given[name]) for name in names))
    assert 0 <= cut.declared_bytes(int(given["ROWS"])) - int(taken[1]) <= 256


def test_the_gate_sees_an_error(tmp_path: Path) -> None:
    """A planted fault: the gate is not green because it compiles nothing."""
    broken = source("rows").replace("grid_wait();", "grid_wait()", 1)
    assert compile_error(broken, (("KV", "F16"),), tmp_path) is not None


def test_no_gpu_is_one_line() -> None:
    """Without a GPU, asking for one says what is missing, in one line."""
    lack = driver.missing()
    if lack is None:
        pytest.skip("this machine has a GPU")
    assert "\n" not in lack
    with pytest.raises(UsageError, match="device cuda: "):
        driver.require()


@pytest.mark.parametrize("weights", sorted(MACRO.values()))
@pytest.mark.parametrize("kib", [99, 163, 227])
def test_products_fit_a_multiprocessor(kib: int, weights: str) -> None:
    """A tile of x and what is read ahead of W, beside what the kernel declares, on every GPU that
    has the kernels' instructions: 99 KiB a block is the least of them."""
    found = cuts_of(weights, kib << 10)
    few = 4 if (weights, kib) == ("Q4", 99) else 5  # there 16 rows go 8 at a time
    assert tuple(found) == ROW_VARIANTS[:few]
    for rows, cuts in found.items():
        for k in (32, 576, 4096, 5120, 14336, 17408, 28672, 53248):
            cut = cut_for(k, weights, cuts)
            assert cut.tile >= cut.piece * 32 * LANE_VALUES[weights], "not one piece of a row fits"
            assert 1 <= cut.early <= cut.depth
            declared = 4 * (rows * 512 + cut.warps * rows * (1 + cut.per_warp))
            declared = -(-(declared + 8 * cut.warps * cut.depth) // 128) * 128
            assert cut.shared_bytes(rows, k, weights) + declared <= kib << 10


@pytest.mark.parametrize("weights", sorted(MACRO.values()))
def test_the_measured_cuts_are_used_where_they_fit(weights: str) -> None:
    """On the GPU they were measured on, none is cut down."""
    assert cuts_of(weights, SHARED) == (BLOCKED_CUTS if weights in BLOCKED else CUTS)
