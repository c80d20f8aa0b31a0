"""What errors of CuPy and CUDA mean, as errors of ours that say what was being done and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import (
    DeviceLostError,
    KernelError,
    KernelTimeoutError,
    MemoryTooSmallError,
    NoGpuError,
    NoPeerAccessError,
)

INSTALL = "install the one wheel that fits the driver: cupy-cuda13x[ctk] for CUDA 13, cupy-cuda12x[ctk] for CUDA 12"

_KINDS: dict[str, tuple[type[Exception], str]] = {
    "NoDevice": (NoGpuError, "there is no GPU that this process may use"),
    "InsufficientDriver": (NoGpuError, f"there is no GPU driver, or it is older than this CuPy needs; {INSTALL}"),
    "MemoryAllocation": (MemoryTooSmallError, "there is too little free memory"),
    "OUT_OF_MEMORY": (MemoryTooSmallError, "there is too little free memory"),
    "PeerAccessUnsupported": (NoPeerAccessError, "the GPUs cannot store into each other's memory"),
    "TooManyPeers": (NoPeerAccessError, "too many GPUs store into each other's memory already"),
    "LaunchTimeout": (DeviceLostError, "the system ended a kernel that ran too long (a display is attached?)"),
    "NoKernelImageForDevice": (KernelError, "the kernel was built for another GPU"),
    "NO_BINARY_FOR_GPU": (KernelError, "the kernel was built for another GPU"),
    "UnsupportedPtxVersion": (KernelError, f"the driver is older than this CuPy's compiler; {INSTALL}"),
    "UNSUPPORTED_PTX_VERSION": (KernelError, f"the driver is older than this CuPy's compiler; {INSTALL}"),
    "LaunchOutOfResources": (KernelError, "the kernel needs more registers or shared memory than there are"),
    "LAUNCH_OUT_OF_RESOURCES": (KernelError, "the kernel needs more registers or shared memory than there are"),
    "InvalidValue": (KernelError, "the GPU does not take what was asked for"),
    "INVALID_VALUE": (KernelError, "the GPU does not take what was asked for"),
    "InvalidConfiguration": (KernelError, "the GPU does not start such a grid"),
    "NotSupported": (KernelError, "this GPU or its driver has no such function"),
    "NOT_SUPPORTED": (KernelError, "this GPU or its driver has no such function"),
    "CooperativeLaunchTooLarge": (KernelError, "the kernel has more blocks than fit at once"),
    "COOPERATIVE_LAUNCH_TOO_LARGE": (KernelError, "the kernel has more blocks than fit at once"),
    "NOT_FOUND": (KernelError, "there is no such kernel in what was compiled"),
    "INVALID_IMAGE": (KernelError, "the driver does not take what was compiled"),
    "INVALID_PTX": (KernelError, "the driver does not take what was compiled"),
    "CompileException": (KernelError, "the kernel does not compile"),
    "DynamicLibNotFound": (NoGpuError, f"CuPy finds no compiler (NVRTC); {INSTALL}"),
}
"""What an error of CuPy means, by a part of its name. Any other error of CUDA means that the device is lost."""


@contextmanager
def told(doing: str) -> Iterator[None]:
    """Turn errors of CuPy into ours, with what was being done."""
    try:
        yield
    except (NoGpuError, MemoryTooSmallError, NoPeerAccessError, KernelTimeoutError, DeviceLostError, KernelError):
        raise
    except Exception as error:
        raise _as_ours(error, doing) from error


def _as_ours(error: Exception, doing: str) -> Exception:
    name = type(error).__name__
    text = f"{name}: {error}"
    if name == "OutOfMemoryError":
        return MemoryTooSmallError(f"{doing}: there is too little free memory ({error})")
    for part, (kind, meaning) in _KINDS.items():
        if part in text.partition(" ")[0] or part in str(error).partition(":")[0]:
            return kind(f"{doing}: {meaning} ({_first_line(error)})")
    if name in ("CUDARuntimeError", "CUDADriverError"):
        return DeviceLostError(f"{doing}: the GPU is lost to this process ({_first_line(error)})")
    return error


def _first_line(error: Exception) -> str:
    """The first line that names an error, else the first one: compilers warn before they refuse."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else type(error).__name__)
