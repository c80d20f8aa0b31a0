"""Run the CUDA kernels without a GPU: built with g++ against kernels/emulation.h, threads as fibers, schedules from seeds.

`build` makes a program of one kernel source, `run` gives it buffers and launches (several GPUs and grids at once) and brings
the buffers back after each seed. With the sanitizer "thread" a data race between threads, CTAs or GPUs is an error, with
"address" an access outside of a buffer, of shared memory or against alignment.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...sim.errors import DeadlockError, InputError, XstageError
from ...sim.files import write_whole
from .compile import KERNELS, CompileError, kernel_text
from .job import Array, Job, Pointer

SANITIZERS: Mapping[str | None, tuple[str, ...]] = {
    None: (),
    "thread": ("-fsanitize=thread",),
    "address": ("-fsanitize=address,alignment,bounds", "-fno-sanitize-recover=all"),
}
_MACRO = {None: (), "thread": ("-DXSTAGE_THREAD_SANITIZER",), "address": ("-DXSTAGE_ADDRESS_SANITIZER",)}
_FLAGS = ("-std=c++17", "-g", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-DXSTAGE_EMULATION")
_DEADLOCK, _FAULT, _RACE, _BAD_MEMORY = 3, 4, 66, 67
_ENVIRONMENT = {
    "TSAN_OPTIONS": f"halt_on_error=1 exitcode={_RACE} report_thread_leaks=0 history_size=2",
    "ASAN_OPTIONS": f"exitcode={_BAD_MEMORY} detect_leaks=0 detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": f"exitcode={_BAD_MEMORY} halt_on_error=1",
}


class EmulationError(XstageError):
    """An emulated kernel broke a rule of the device; the message says which and where."""


class RaceError(EmulationError):
    """Two threads touched the same data without an acquire/release pair between them, or a copy was not waited for."""


class MemoryFaultError(EmulationError):
    """An access outside of a buffer or of shared memory, or not aligned."""


@dataclass(frozen=True)
class Outcome:
    """A run with one seed: how long it took (ticks) and the output buffers, shaped as they were given."""

    seed: int
    ticks: int
    buffers: Mapping[str, Array]


def compiler() -> str | None:
    """The g++ of this machine, if it has one."""
    return shutil.which(os.environ.get("CXX", "g++"))


def build(
    source: str | Path,
    folder: Path,
    sanitizer: str | None = None,
    defines: Mapping[str, str | int] | None = None,
) -> Path:
    """Build a program that runs the kernels of `source`; one that is in `folder` already is taken as it is.

    Raises `CompileError` if there is no g++ or it refuses the source, `InputError` for an unknown sanitizer.
    """
    if sanitizer not in SANITIZERS:
        raise InputError("is unknown", field="sanitizer", value=sanitizer, allowed=[str(name) for name in SANITIZERS])
    cxx = compiler()
    if cxx is None:
        raise CompileError("no g++ on this machine: kernels cannot be emulated (Debian, Ubuntu: apt install g++)")
    macros = [f"-D{name}={value}" for name, value in sorted((defines or {}).items())]
    flags = [*_FLAGS, *SANITIZERS[sanitizer], *macros]
    scheduler = _scheduler(cxx, folder, sanitizer)
    text = kernel_text(source, emulation=True)
    name = f"{Path(source).stem}-{sanitizer or 'plain'}-{_digest(cxx, text, *flags, scheduler.name)}"
    target = folder / name
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            kernel = Path(scratch) / "kernel.cpp"
            kernel.write_text(text, encoding="utf-8")
            linked = Path(scratch) / name
            _compile([cxx, *flags, "-O1", str(kernel), str(scheduler), "-o", str(linked)], str(source))
            linked.replace(target)  # whole or not at all, and executable, which a file of `write_whole` is not
    return target


def run(program: Path, job: Job, seeds: Iterable[int] = (0,), deadlines: bool = False) -> list[Outcome]:
    """Run the grids of a job at once, from the same initial buffers for each seed.

    With `deadlines`, when nothing can run any more the deadlines of all spins pass, as they would in time; otherwise that is
    a `DeadlockError` naming who waits for what. Raises `RaceError`, `MemoryFaultError` (with a sanitizer), `EmulationError`
    for any other broken rule, and `InputError` if a pointer leads nowhere.
    """
    seeds = list(seeds)
    with tempfile.TemporaryDirectory(prefix="xstage-emulation-") as scratch:
        written, result = Path(scratch) / "job", Path(scratch) / "result"
        written.write_bytes(_written(job, seeds, deadlines))
        command = [*_without_randomised_addresses(), str(program), str(written), str(result)]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=os.environ | _ENVIRONMENT,
            check=False,
        )
        if done.returncode:
            _raise(done.returncode, done.stderr, Path(program).name)
        return _outcomes(result.read_bytes(), job, seeds)


def _scheduler(cxx: str, folder: Path, sanitizer: str | None) -> Path:
    """The scheduler and main program as one object file; built once for each sanitizer, and not itself sanitised."""
    headers = sorted(KERNELS.glob("emulation*.h"))
    sources = sorted(KERNELS.glob("emulation*.cpp"))
    flags = [*_FLAGS, *_MACRO[sanitizer], "-O2", "-fno-tree-loop-distribute-patterns"]
    target = folder / f"scheduler-{_digest(cxx, *flags, *(path.read_text() for path in headers + sources))}.o"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            parts = []
            for source in sources:
                parts.append(str(Path(scratch) / f"{source.name}.o"))
                _compile([cxx, *flags, "-c", str(source), "-o", parts[-1]], source.name)
            with write_whole(target) as temporary:
                _compile([cxx, "-r", "-nostdlib", *parts, "-o", str(temporary)], "emulation")
    return target


def _compile(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise CompileError(f"{what} does not compile for the host: {done.stderr.strip()}")


def _digest(cxx: str, *parts: str) -> str:
    digest = hashlib.sha256()
    for part in (_version(cxx), *parts):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


@lru_cache
def _version(cxx: str) -> str:
    return subprocess.run([cxx, "--version"], capture_output=True, text=True, check=False).stdout


@lru_cache
def _without_randomised_addresses() -> tuple[str, ...]:
    """ThreadSanitizer needs addresses where it expects them, which newer kernels randomise too far."""
    setarch = shutil.which("setarch")
    if not setarch:
        return ()
    command = (setarch, platform.machine(), "-R")
    works = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    return command if works else ()


def _written(job: Job, seeds: Sequence[int], deadlines: bool) -> bytes:
    """The job as emulation_main.cpp reads it."""
    buffers = job.buffers
    number = {name: i for i, name in enumerate(buffers)}
    relocations: list[tuple[int, int, int, int, int]] = []

    def point(in_grid: int, index: int, offset: int, pointer: Pointer) -> None:
        if pointer.buffer not in number:
            raise InputError("no such buffer", field="pointer", value=pointer.buffer, allowed=list(number))
        if not 0 <= pointer.offset <= buffers[pointer.buffer].values.nbytes:
            raise InputError("lies outside of its buffer", field="pointer", value=pointer)
        relocations.append((in_grid, index, offset, number[pointer.buffer], pointer.offset))

    parts = [_numbers(int(deadlines), len(buffers))]
    for index, (name, buffer) in enumerate(buffers.items()):
        values = np.ascontiguousarray(buffer.values)
        parts += [_text(name.encode()), _numbers(buffer.home, values.itemsize, int(buffer.output))]
        parts.append(_text(values.tobytes()))
        for offset, pointer in buffer.pointers.items():
            point(0, index, offset, pointer)
    parts.append(_numbers(len(job.grids)))
    for index, grid in enumerate(job.grids):
        parts.append(_text(grid.kernel.encode()))
        parts.append(_numbers(grid.gpu, grid.n_ctas, grid.n_threads, grid.shared_bytes))
        parts.append(_text(np.ascontiguousarray(grid.parameters).tobytes()))
        fields: Mapping[str, Any] = grid.parameters.dtype.fields or {}
        for name, pointer in grid.pointers.items():
            point(1, index, fields[name][1], pointer)
    parts.append(_numbers(len(relocations)))
    parts += [_numbers(*each) for each in relocations]
    parts.append(_numbers(len(seeds), *seeds))
    return b"".join(parts)


def _numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *(int(value) for value in values))


def _text(data: bytes) -> bytes:
    return _numbers(len(data)) + data


def _outcomes(data: bytes, job: Job, seeds: Sequence[int]) -> list[Outcome]:
    outcomes, at = [], 0
    for seed in seeds:
        (ticks,) = struct.unpack_from("<q", data, at)
        at += 8
        values = {}
        for name, buffer in job.buffers.items():
            if buffer.output:
                shape, dtype = buffer.values.shape, buffer.values.dtype
                values[name] = np.frombuffer(data, dtype, buffer.values.size, at).reshape(shape).copy()
                at += buffer.values.nbytes
        outcomes.append(Outcome(seed, ticks, values))
    return outcomes


def _raise(code: int, said: str, name: str) -> None:
    seeds = re.findall(r"^seed (\d+)$", said, re.MULTILINE)
    where = f"{name}, seed {seeds[-1]}" if seeds else name
    message = re.sub(r"^(seed \d+|=+)\n", "", said, flags=re.MULTILINE).split("\nShadow bytes around")[0].strip()
    if code == _DEADLOCK:
        raise DeadlockError(f"{where}: {message}")
    kind = {_RACE: RaceError, _BAD_MEMORY: MemoryFaultError}.get(code, EmulationError)
    raise kind(f"{where}: {message or f'ended with code {code}'}")
