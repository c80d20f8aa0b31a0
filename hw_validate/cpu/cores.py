"""Which cores there are to run on, and threads that stay on theirs.

`run_pinned` runs one function a core, in threads; the functions are compiled and let go of Python's lock. Whatever ends the
caller (an error in one thread, Ctrl-C) is passed to the others through `abort`, and no thread is left running.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ...sim.errors import InputError


def usable_cores() -> list[int]:
    """Numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def choose_cores(count: int, lost_time: Callable[[int], float] | None = None) -> list[int]:
    """The `count` cores that lose the least time to others (`lost_time` of a core), or the last ones if not asked.

    Raises `InputError` if there are not as many.
    """
    cores = usable_cores()
    if not 1 <= count <= len(cores):
        raise InputError("is not available", field="cores", value=count, allowed=f"1 to {len(cores)} on this computer")
    ranked = sorted(cores[::-1], key=lost_time) if lost_time and len(cores) > 1 else cores[::-1]
    return ranked[:count]


def run_pinned(
    functions: Sequence[Callable[[], Any]], cores: Sequence[int], abort: Callable[[], None] = lambda: None
) -> list[Any]:
    """What the functions return, each run in a thread of its own on the core of the same position.

    The first error of a function is raised here after all threads have ended; so is Ctrl-C.
    """
    results: list[Any] = [None] * len(functions)
    errors: list[BaseException] = []
    ended = [threading.Event() for _ in functions]

    def work(position: int) -> None:
        try:
            _stay_on(cores[position])
            results[position] = functions[position]()
        except BaseException as error:
            errors.append(error)
            abort()
        finally:
            ended[position].set()

    threads = [threading.Thread(target=work, args=(i,), name=f"xstage lane {i}") for i in range(len(functions))]
    try:
        for thread in threads:
            thread.start()
        for event in ended:
            while not event.wait(0.05):  # in slices, so that Ctrl-C is seen on every system
                pass
    except BaseException:
        abort()
        raise
    finally:
        for thread, event in zip(threads, ended, strict=True):
            if thread.ident is not None:  # Ctrl-C may come before all of them have started
                _outlast(event)
                thread.join()
    if errors:
        raise errors[0]
    return results


def _outlast(event: threading.Event) -> None:
    """Wait for the event whatever comes. A `join` that Ctrl-C interrupts may take its thread for ended (CPython 3.11)."""
    while not event.is_set():
        with contextlib.suppress(KeyboardInterrupt):
            event.wait(0.05)


def _stay_on(core: int) -> None:
    """Keep this thread on one core, where the system allows it (Linux: thread 0 is the calling one)."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
