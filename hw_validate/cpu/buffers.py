"""Memory for stores: touched, aligned, on huge pages where the system gives them.

Where address translation is part of the time of a burst, the drain rate falls by half and more, and varies; the law knows
nothing of it, and its knee goes soft. Linux gives huge pages to private memory only, and only to a whole huge page of it at
once, so that is what is asked for; `Buffer.huge_bytes` says how much was given. A virtual machine may get none, or only what
its host holds in small ones, so buffers are also kept small where non-temporal stores allow it, see
`Architecture.buffer_bytes`.
"""

from __future__ import annotations

import mmap
import sys
from pathlib import Path
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
        whole = -(-size // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        self._memory = _private_memory(whole + HUGE_PAGE_BYTES)
        self.huge_pages = _ask_for_huge_pages(self._memory)
        self._bytes = np.frombuffer(self._memory, dtype=np.uint8)
        first = self._bytes.ctypes.data
        self.address = -(-first // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        start = self.address - first
        self.bytes = self._bytes[start : start + size]
        self.bytes[:: mmap.PAGESIZE] = 0

    @property
    def huge_bytes(self) -> int | None:
        """How much of the buffer lies on huge pages; None where the system does not tell."""
        return huge_bytes_of(Path("/proc/self/smaps"), self.address, self.size)

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


def huge_bytes_of(smaps: Path, address: int, size: int) -> int | None:
    """What of `size` bytes at `address` lies on huge pages at most, by the list of mappings of a process (Linux: smaps)."""
    if not smaps.exists():
        return None
    is_it = False
    for line in smaps.read_text().splitlines():
        key, _, rest = line.partition(" ")
        if not key.endswith(":"):
            first, _, end = key.partition("-")
            is_it = int(first, 16) <= address < int(end, 16)
        elif is_it and key == "AnonHugePages:":
            return min(size, 1024 * int(rest.split()[0]))
    return None


def _private_memory(size: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _ask_for_huge_pages(memory: mmap.mmap) -> bool:
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None:
        return False
    try:
        memory.madvise(advice)
    except OSError:  # a kernel without transparent huge pages
        return False
    return True
