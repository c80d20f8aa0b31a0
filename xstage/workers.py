"""The same function over many plain inputs, on a few processes of this computer, in order."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from threading import Thread
from typing import TypeVar

from .terminal.counted_progress import Report, unreported

Given = TypeVar("Given")
Made = TypeVar("Made")


def map_on_workers(
    function: Callable[[Given], Made], inputs: Sequence[Given], workers: int, report: Report = unreported
) -> list[Made]:
    """`function` of each input, in their order; in this process for a single worker. The first error ends it all.

    Fresh processes are started, so both ways of calling give the same and the caller may hold threads.
    """
    if workers <= 1 or len(inputs) <= 1:
        made = []
        for one in inputs:
            made.append(function(one))
            report(len(made), len(inputs))
        return made
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(inputs)), mp_context=context, initializer=_end_with_parent) as pool:
        futures = [pool.submit(function, one) for one in inputs]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                report(done, len(inputs))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


def _end_with_parent() -> None:
    """Processes of a pool would wait for work for ever when the one that started them is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    Thread(target=end, daemon=True).start()
