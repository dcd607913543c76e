"""The CUDA driver as seen from here: is it there, and launches that CuPy does not offer.

CuPy launches kernels without attributes. Programmatic dependent launch (a kernel's prologue
overlaps the end of the one before) needs ``cuLaunchKernelEx``, called here through ctypes on the
functions and streams that CuPy owns.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from kvbench.device.cuda.source import Defines, options, source
from kvbench.errors import DeviceError, UsageError

LEAST_CAPABILITY = 80
"""cp.async and the other instructions of the kernels: Ampere and later."""

# CUfunction_attribute and CUlaunchAttributeID values of cuda.h.
_STATIC_SHARED = 1
_MAX_DYNAMIC_SHARED = 8
_CARVEOUT = 9
_PROGRAMMATIC_SERIALIZATION = 6
_FIRST_PROGRAMMATIC = 90

_SHARED = "MaxSharedMemoryPerBlockOptin"


def missing() -> str | None:
    """What this machine lacks for ``--device cuda``, in one line; None if nothing."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed: pip install 'kvbench[cuda]' or 'kvbench[cuda13]'"
    if cupy.cuda.runtime.is_hip:
        return "CuPy is a ROCm build; the kernels are CUDA only"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no NVIDIA driver that CuPy {cupy.__version__} can use ({error})"
    if count == 0:
        return "the NVIDIA driver sees no GPU"
    capability = int(cupy.cuda.Device(0).compute_capability)
    if capability < LEAST_CAPABILITY:
        return f"compute capability {capability / 10} is below {LEAST_CAPABILITY / 10}"
    return None


def require() -> Any:
    """The cupy module; raises UsageError with what is missing."""
    lack = missing()
    if lack is not None:
        raise UsageError(f"device cuda: {lack}")
    import cupy

    return cupy


class _AttributeValue(ctypes.Union):
    _fields_ = [("pad", ctypes.c_char * 64), ("allowed", ctypes.c_int)]


class _Attribute(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", _AttributeValue),
    ]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("n_attributes", ctypes.c_uint),
    ]


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libcuda.so.1")
    library.cuLaunchKernelEx.argtypes = [
        ctypes.POINTER(_Config),
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.POINTER(ctypes.c_void_p),
    ]
    library.cuFuncSetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    return library


def _check(status: int, what: str) -> None:
    if status != 0:
        text = ctypes.c_char_p()
        _library().cuGetErrorName(status, ctypes.byref(text))
        name = text.value.decode() if text.value else str(status)
        raise DeviceError(f"{what}: {name}")


@dataclass(frozen=True, slots=True)
class Function:
    """One compiled kernel of the current GPU; ``owner`` keeps its module loaded."""

    name: str
    pointer: int
    owner: Any = field(repr=False)


@cache
def _module(gpu: int, name: str, defines: Defines) -> Any:
    import cupy

    with cupy.cuda.Device(gpu):
        return cupy.RawModule(code=source(name), options=options(defines), backend="nvrtc")


@cache
def _function(gpu: int, file: str, name: str, defines: Defines) -> Function:
    import cupy

    with cupy.cuda.Device(gpu):
        kernel = _module(gpu, file, defines).get_function(name).kernel
        _prepare(kernel.ptr, gpu)
    return Function(name, kernel.ptr, kernel)


def function(file: str, name: str, **defines: object) -> Function:
    """Kernel ``name`` of ``kernels/<file>.cu``, compiled at first use (CuPy keeps it on disk)."""
    return _function(_current(), file, name, tuple((k, str(v)) for k, v in sorted(defines.items())))


@cache
def _prepare(pointer: int, gpu: int) -> None:
    """Let a kernel use all the shared memory there is, and keep the split against L1 the same for
    all kernels: another split would make a multiprocessor drain first."""
    library = _library()
    static = ctypes.c_int()
    library.cuFuncGetAttribute(ctypes.byref(static), _STATIC_SHARED, ctypes.c_void_p(pointer))
    most = _attribute(gpu, _SHARED) - static.value
    _check(library.cuFuncSetAttribute(pointer, _MAX_DYNAMIC_SHARED, most), "shared memory")
    _check(library.cuFuncSetAttribute(pointer, _CARVEOUT, 100), "shared memory")


@cache
def _attribute(gpu: int, name: str) -> int:
    import cupy

    return int(cupy.cuda.Device(gpu).attributes[name])


def multiprocessors() -> int:
    """Multiprocessors of the current GPU."""
    return _attribute(_current(), "MultiProcessorCount")


def shared_memory() -> int:
    """Bytes of shared memory that a block of the current GPU can have."""
    return _attribute(_current(), _SHARED)


@cache
def _programmatic(gpu: int) -> bool:
    import cupy

    return int(cupy.cuda.Device(gpu).compute_capability) >= _FIRST_PROGRAMMATIC


def _current() -> int:
    import cupy

    return int(cupy.cuda.runtime.getDevice())


class Launch:
    """A kernel with its shape and arguments: calling it with a stream queues it."""

    __slots__ = ("_arguments", "_attribute", "_config", "_keep", "function")

    def __init__(
        self,
        kernel: Function,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: ctypes.Structure | ctypes.c_uint64,
        *,
        shared: int = 0,
        overlap: bool = True,
    ) -> None:
        """``arguments`` is the kernel's one parameter; ``shared``: dynamic bytes per block.

        ``overlap`` lets the kernel's prologue run beside the end of its predecessor on the same
        stream; kernels here wait (grid_wait) before they touch anything that is not constant.
        """
        self.function = kernel
        config = _Config()
        config.grid = (*grid, 1, 1)[:3]
        config.block = (*block, 1, 1)[:3]
        config.shared = shared
        if overlap and _programmatic(_current()):
            self._attribute = _Attribute(_PROGRAMMATIC_SERIALIZATION)
            self._attribute.value.allowed = 1
            config.attributes = ctypes.pointer(self._attribute)
            config.n_attributes = 1
        self._config = config
        self._keep = arguments
        self._arguments = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))

    def __call__(self, stream: int) -> None:
        """Queue the kernel on the CUDA stream with this pointer."""
        self._config.stream = stream
        status = _library().cuLaunchKernelEx(
            ctypes.byref(self._config), self.function.pointer, self._arguments, None
        )
        if status:
            _check(status, f"kernel {self.function.name}")
