"""Memory for stores: touched, aligned, on huge pages where the system gives them.

Where address translation is part of the time of a burst, the drain rate falls by half and more, and varies; the law knows
nothing of it. Huge pages help, but a virtual machine may not get real ones (`Buffer.huge_pages` says what was asked for, not
what was given), so buffers are also kept small where non-temporal stores allow it, see `Architecture.buffer_bytes`.
"""

from __future__ import annotations

import mmap
from types import TracebackType

import numpy as np

from ...sim.errors import InputError
from .architecture import LINE_BYTES

HUGE_PAGE_BYTES = 2 << 20


class Buffer:
    """`size` bytes of anonymous memory from `address` on, every page of it touched. Close it, or use it in `with`.

    Raises `InputError` for a size that is no positive multiple of a line.
    """

    def __init__(self, size: int) -> None:
        if size < LINE_BYTES or size % LINE_BYTES:
            raise InputError(
                "is no size of a buffer", field="size", value=size, allowed=f"a multiple of {LINE_BYTES} B"
            )
        self.size = size
        self._memory = mmap.mmap(-1, size + HUGE_PAGE_BYTES)
        self.huge_pages = _ask_for_huge_pages(self._memory)
        self._bytes = np.frombuffer(self._memory, dtype=np.uint8)
        first = self._bytes.ctypes.data
        self.address = -(-first // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        start = self.address - first
        self.bytes = self._bytes[start : start + size]
        self.bytes[:: mmap.PAGESIZE] = 0

    def close(self) -> None:
        """Give the memory back; arrays that look into it must be gone."""
        del self.bytes, self._bytes
        self._memory.close()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ask_for_huge_pages(memory: mmap.mmap) -> bool:
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return False
    try:
        memory.madvise(advice)
    except OSError:  # a kernel without transparent huge pages
        return False
    return True
