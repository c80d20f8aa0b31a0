"""Kernels as text for any CUDA compiler, and compiled for an architecture without a GPU, with what they need.

A kernel and its headers are put together into one text, so that nothing depends on include paths: the same text goes to
CuPy on a machine with a GPU and to NVRTC from pip (`cuda-core`) in the tests. `Resources` are what ptxas reports; a kernel
that spills or needs a stack measures its own memory traffic as well, so the tests refuse one.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...sim.errors import InputError, XstageError

KERNELS = Path(__file__).parent / "kernels"
ARCHITECTURES = ("sm_80", "sm_90", "sm_90a", "sm_100a", "sm_120")
"""A100; H100 and H200, also as CuPy compiles for them; B200 and GB300; RTX PRO 6000. What the kernels must compile for."""

_INCLUDE = re.compile(r'^\s*#include "([^"]+)".*$', re.MULTILINE)
_ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")


class CompileError(XstageError):
    """A kernel does not compile, or there is no compiler; the message holds what the compiler said."""


@dataclass(frozen=True)
class Resources:
    """What one kernel needs: registers a thread, bytes of stack a thread, bytes of spilled registers stored and loaded."""

    registers: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True)
class Compiled:
    """A cubin for one architecture, with the resources of each of its kernels and the compiler's whole report."""

    architecture: str
    cubin: bytes
    kernels: Mapping[str, Resources]
    log: str


def kernel_text(source: str | Path, emulation: bool = False) -> str:
    """The text of a kernel with its headers in place of their include lines.

    `source` is a file of the kernels folder by name, or any path; headers come from the folder of the kernel, then from the
    kernels folder, each once. Unless `emulation`, the host's headers are left out.

    Raises `InputError` if a file does not exist.
    """
    return _expand(_find(source, KERNELS), emulation, set())


def compile_kernel(source: str | Path, architecture: str) -> Compiled:
    """Compile a kernel with NVRTC for an architecture such as "sm_90a".

    Raises `CompileError` with the compiler's message, or if cuda-core is not installed.
    """
    try:
        from cuda.core import Program, ProgramOptions
    except ImportError as error:
        raise CompileError(
            f"no CUDA compiler: cuda-core is not installed ({error}); pip install 'cuda-core[cu12]'"
        ) from error
    options = ProgramOptions(
        name=Path(source).name,
        arch=architecture,
        std="c++17",
        ptxas_options=["-v"],
    )
    log = io.StringIO()
    try:
        program = Program(kernel_text(source), code_type="c++", options=options)
        cubin = program.compile("cubin", logs=log)
    except XstageError:
        raise
    except Exception as error:  # cuda-core has its own kinds for each backend
        raise CompileError(f"{source} does not compile for {architecture}: {error}") from error
    text = log.getvalue().rstrip("\0\n ")
    return Compiled(architecture, bytes(cubin.code), _resources(text), text)


def _resources(log: str) -> dict[str, Resources]:
    kernels = {}
    parts = _ENTRY.split(log)
    for name, report in zip(parts[1::2], parts[2::2], strict=True):
        memory, used = _MEMORY.search(report), _USED.search(report)
        if not memory or not used:
            raise CompileError(f"the report of ptxas on {name} cannot be read: {report.strip()}")
        stack, stores, loads = (int(number) for number in memory.groups())
        kernels[name] = Resources(int(used[1]), stack, stores + loads)
    return kernels


def _find(name: str | Path, *folders: Path) -> Path:
    for folder in folders:
        path = folder / name
        if path.is_file():
            return path
    known = ", ".join(sorted(path.name for path in KERNELS.glob("*.cu")))
    raise InputError("no such source", field="kernel", value=str(name), allowed=f"a path, or {known}")


def _expand(path: Path, emulation: bool, seen: set[Path]) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[1].startswith("emulation") and not emulation:
            return ""
        header = _find(match[1], path.parent, KERNELS)
        if header in seen:
            return ""
        line = text.count("\n", 0, match.end()) + 2
        return f'{_expand(header, emulation, seen)}\n#line {line} "{path.name}"'

    seen.add(path)
    text = path.read_text(encoding="utf-8").replace("#pragma once\n", "\n")
    return f'#line 1 "{path.name}"\n' + _INCLUDE.sub(replace, text)
