"""Worker processes end with the process that started them, however that one ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def end_with(parent: int) -> None:
    """On Linux, be killed when the process `parent` dies. Elsewhere a worker ends when its task does.

    Linux does so when the thread that started this process ends: it has to outlive the worker.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)
