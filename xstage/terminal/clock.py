"""How far a run is and how long it will take yet, on standard error: a bar for a terminal, a line now and then for a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

PATIENCE_S = 2.0
BETWEEN_LINES_S = 10.0


@contextmanager
def clock(doing: str) -> Iterator[Callable[[float], None]]:
    """Gives a function that is to be told the share that is done. What takes less than two seconds says nothing to a log."""
    if sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(doing, total=1.0)
            yield lambda share: bar.update(task, completed=share)
    else:
        yield _lines(doing, time.monotonic)


@contextmanager
def elapsed(doing: str) -> Iterator[Callable[[], None]]:
    """Tells a log, now and then, how long something takes already that cannot say how far it is.

    That ends with the block, or when the function that it gives is called. What takes less than two seconds says nothing.
    """
    over = Event()
    teller = Thread(target=_tell_elapsed, args=(doing, over.wait), daemon=True)
    teller.start()
    try:
        yield over.set
    finally:
        over.set()
        teller.join()


def _tell_elapsed(doing: str, is_over_in: Callable[[float], bool]) -> None:
    told, pause = 0.0, PATIENCE_S
    while not is_over_in(pause):
        told += pause
        print(f"{doing}: {told:.0f} s", file=sys.stderr, flush=True)
        pause = BETWEEN_LINES_S


def _lines(doing: str, now: Callable[[], float]) -> Callable[[float], None]:
    started = now()
    next_line = started + PATIENCE_S

    def tell(share: float) -> None:
        nonlocal next_line
        took = now() - started
        if started + took < next_line or share <= 0:
            return
        left = took * (1 - share) / share
        print(f"{doing}: {took:.0f} s, {share:.0%} done, about {left:.0f} s left", file=sys.stderr, flush=True)
        next_line = started + took + BETWEEN_LINES_S

    return tell
