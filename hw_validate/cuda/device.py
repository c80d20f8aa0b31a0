"""GPUs as the collector sees them: facts, memory, and kernels that run on several of them at once.

`Devices` is the whole interface between the collector and hardware. cupy_devices.py implements it on CuPy; tests run the
same collector on kernels that are emulated on the CPU, and on devices that fail on purpose.

Needs NumPy alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class DeviceFacts:
    """One GPU. `clock_mhz` is the highest SM clock that it states (0: it states none)."""

    index: int
    name: str
    compute_capability: str
    sms: int
    clock_mhz: float
    memory_bytes: int
    free_bytes: int
    l2_bytes: int
    shared_per_block_bytes: int
    shared_per_sm_bytes: int
    more: dict[str, Any] = field(default_factory=dict)


class Buffer(Protocol):
    """Memory that kernels can address at `address`, on a GPU or pinned on the host."""

    address: int
    size: int

    def write(self, data: np.ndarray[Any, Any], offset: int = 0) -> None: ...

    def read(self, size: int | None = None, offset: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]: ...

    def clear(self) -> None: ...

    def free(self) -> None: ...


@dataclass(frozen=True)
class Launch:
    """A kernel of one source file on one GPU: a cooperative grid of `grid` blocks. `parameters` is one structured value."""

    device: int
    source: str
    kernel: str
    grid: int
    block: int
    shared_bytes: int
    parameters: np.ndarray[Any, np.dtype[Any]]


class Devices(Protocol):
    """All GPUs of this process. What cannot be done raises an error of errors.py."""

    def facts(self) -> list[DeviceFacts]: ...

    def platform(self) -> dict[str, Any]:
        """Versions of driver, CUDA and CuPy, and whatever else describes this computer."""
        ...

    def can_access(self, device: int, peer: int) -> bool: ...

    def native_atomics(self, device: int, peer: int) -> bool:
        """Whether counters in the memory of `peer` may be added to by `device` and others at once."""
        ...

    def enable_access(self, device: int, peer: int) -> None: ...

    def device_memory(self, device: int, size: int) -> Buffer: ...

    def host_memory(self, size: int) -> Buffer: ...

    def prepare(self, device: int, source: str, kernels: Sequence[str]) -> dict[str, int]:
        """Compile and load kernels before any runs. Returns registers, local memory and static shared memory, in bytes."""
        ...

    def run(self, launches: Sequence[Launch], abort: Sequence[Buffer], deadline_s: float) -> float:
        """Start all launches, wait for all, and return seconds. `abort` are words, one a launch, that tell kernels to give
        up: they are set when the deadline passes or the caller is interrupted."""
        ...

    def now(self, device: int) -> dict[str, Any]:
        """Clocks, power and temperature as they are now, as far as they can be read; for the record only."""
        ...
