"""How far a run is and how long it will take yet, on standard error: a bar for a terminal, a line now and then for a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
