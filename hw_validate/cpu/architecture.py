"""Which processors the CPU validator knows, and what it uses on each.

    x86-64   non-temporal stores of 512, 256 or 128 bits (vmovntps, movntps), lfence + rdtsc, sfence
    Arm64    stnp of two 128-bit registers, isb + cntvct_el0, dsb st

Anything else is refused: without these instructions a number would be one of something else.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from ..measuring import MeasurementError

LINE_BYTES = 64
"""What one step of a store loop writes: a cache line of x86-64 and of most Arm64 processors."""


class UnsupportedProcessorError(MeasurementError):
    """This processor lacks what the CPU validator measures with."""


@dataclass(frozen=True)
class Architecture:
    """How a line is stored past the caches, time is read and stores are waited for. Widths in bits; texts are assembly.

    `counter_outputs` are constraints of LLVM's inline assembly. `buffer_bytes` is the memory that bursts walk through: on
    x86 no more than the translation buffers reach with small pages; on Arm64, where a non-temporal store is but a hint and
    may stay in a cache, more than the caches hold.
    """

    name: str
    store_bits: int
    store_instruction: str
    counter: str
    counter_outputs: str
    fence: str
    buffer_bytes: int


def detect(
    machine: str | None = None, flags: Mapping[str, bool] | None = None, pointer_bits: int | None = None
) -> Architecture:
    """The architecture of this processor, or of the one described.

    `machine` is what `platform.machine()` says, `flags` LLVM's names of the features that a processor has.
    Raises `UnsupportedProcessorError` for one that is neither x86-64 nor Arm64, or for a 32-bit Python.
    """
    machine = platform.machine() if machine is None else machine
    pointer_bits = 8 * struct.calcsize("P") if pointer_bits is None else pointer_bits
    if pointer_bits != 64:
        raise UnsupportedProcessorError(f"the CPU validator needs a 64-bit Python, this one has {pointer_bits} bits")
    if machine.lower() in ("x86_64", "amd64"):
        return _x86_64(_host_flags() if flags is None else flags)
    if machine.lower() in ("aarch64", "arm64"):
        return Architecture(
            name="Arm64",
            store_bits=256,
            store_instruction="stnp",
            counter="isb\nmrs $0, cntvct_el0\nisb",
            counter_outputs="=r,~{memory}",
            fence="dsb st",
            buffer_bytes=256 << 20,
        )
    raise UnsupportedProcessorError(
        f"the CPU validator has no non-temporal stores for a {machine or 'nameless'} processor (allowed: x86-64, Arm64)"
    )


def _x86_64(flags: Mapping[str, bool]) -> Architecture:
    if flags.get("avx512f"):
        bits, instruction = 512, "vmovntps zmm"
    elif flags.get("avx"):
        bits, instruction = 256, "vmovntps ymm"
    else:  # every x86-64 processor has SSE2
        bits, instruction = 128, "movntps xmm"
    return Architecture(
        name="x86-64",
        store_bits=bits,
        store_instruction=instruction,
        counter="lfence\nrdtsc\nshlq $$32, %rdx\norq %rdx, %rax\nlfence",
        counter_outputs="={rax},~{rdx},~{memory},~{flags}",
        fence="sfence",
        buffer_bytes=1 << 20,
    )


def _host_flags() -> Mapping[str, bool]:
    from llvmlite import binding

    try:
        return dict(binding.get_host_cpu_features())
    except RuntimeError:  # LLVM cannot tell on some systems: the oldest stores work everywhere
        return {}
