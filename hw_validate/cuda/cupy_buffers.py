"""Memory of GPUs and of the host on CuPy: the `Buffer` of device.py."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np

from .cupy_errors import told

HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
"""Kinds of cudaMemcpy."""
_MAPPED_AND_PORTABLE = 3

KEPT: list[Any] = []
"""Memory of lost devices. To free it would wait for a kernel that never ends."""


class Owner(Protocol):
    """Whoever made a buffer. `lost`: a kernel that never ends may still use it."""

    lost: bool


class DeviceBuffer:
    """Memory of a GPU."""

    def __init__(self, owner: Owner, cupy: Any, device: int, size: int) -> None:
        self._owner, self._cupy, self._device, self.size = owner, cupy, device, size
        self._memory = cupy.cuda.Memory(size)
        self.address = int(self._memory.ptr)

    def write(self, data: np.ndarray[Any, Any], offset: int = 0) -> None:
        data = np.ascontiguousarray(data)
        with told(f"writing to GPU {self._device}"), self._cupy.cuda.Device(self._device):
            self._cupy.cuda.runtime.memcpy(self.address + offset, data.ctypes.data, data.nbytes, HOST_TO_DEVICE)

    def read(self, size: int | None = None, offset: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
        data = np.empty(self.size - offset if size is None else size, dtype=np.uint8)
        with told(f"reading from GPU {self._device}"), self._cupy.cuda.Device(self._device):
            self._cupy.cuda.runtime.memcpy(data.ctypes.data, self.address + offset, data.nbytes, DEVICE_TO_HOST)
        return data

    def clear(self) -> None:
        with told(f"clearing memory of GPU {self._device}"), self._cupy.cuda.Device(self._device):
            self._cupy.cuda.runtime.memset(self.address, 0, self.size)
            self._cupy.cuda.runtime.deviceSynchronize()

    def free(self) -> None:
        if self._owner.lost:
            KEPT.append(self._memory)
        self._memory = None


class HostBuffer:
    """Pinned memory of the host, which every GPU can address."""

    def __init__(self, owner: Owner, cupy: Any, size: int) -> None:
        self._owner, self.size = owner, size
        self._memory = cupy.cuda.PinnedMemory(size, _MAPPED_AND_PORTABLE)
        self.address = int(self._memory.ptr)
        self._view = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address))

    def write(self, data: np.ndarray[Any, Any], offset: int = 0) -> None:
        self._view[offset : offset + data.nbytes] = np.ascontiguousarray(data).view(np.uint8).ravel()

    def read(self, size: int | None = None, offset: int = 0) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return self._view[offset : None if size is None else offset + size].copy()

    def clear(self) -> None:
        self._view[:] = 0

    def free(self) -> None:
        self._view = np.zeros(0, dtype=np.uint8)
        if self._owner.lost:
            KEPT.append(self._memory)
        self._memory = None
