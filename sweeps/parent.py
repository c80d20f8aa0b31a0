"""Worker processes: a module of this package run in a fresh Python, which ends with the process that started it."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_worker(module: str, *words: str) -> tuple[subprocess.Popen[bytes], Connection]:
    """Run `python -m MODULE PARENT_PID ANSWERS_FD WORDS...`. Gives the process, and a pipe where answers arrive."""
    read, write = os.pipe()
    answers = Connection(read, writable=False)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(os.getpid()), str(write), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # the caller's standard output may have to be one JSON object
            pass_fds=[write],
            process_group=0,  # Ctrl-C is for the parent alone
        )
    finally:
        os.close(write)
    return process, answers


def send(process: subprocess.Popen[bytes], message: Any) -> bool:
    """Write a pickle to the standard input of a worker that waits for one. False if it has ended."""
    assert process.stdin is not None
    try:
        pickle.dump(message, process.stdin)
        process.stdin.flush()
    except BrokenPipeError:
        return False
    return True


def kill_worker(process: subprocess.Popen[bytes], answers: Connection) -> None:
    """End a worker at once, and close its pipes."""
    process.kill()
    process.wait()
    answers.close()
    try:
        if process.stdin is not None:
            process.stdin.close()
    except BrokenPipeError:  # something was left that nobody will read
        pass


def end_with(parent: int) -> None:
    """On Linux, be killed when the process `parent` dies. Elsewhere a worker ends when its task does.

    Linux does so when the thread that started this process ends: it has to outlive the worker.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)
