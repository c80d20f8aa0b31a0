"""How much memory there is: what cannot fit is refused before it is made, not by the system while it is."""

from __future__ import annotations

import os

MEMORY_SHARE = 0.7  # of this machine's memory, which one table or the records of one run may take


def most_bytes() -> float:
    """Bytes that may be asked for at once on this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_SHARE
