"""How far a row of runs is, on standard error: a bar for a terminal, a line now and then for a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from .clock import BETWEEN_LINES_S, PATIENCE_S

Report: TypeAlias = Callable[[int, int], None]
"""Called with the runs done and the runs expected in all, which may still change."""


def unreported(done: int, expected: int) -> None:
    """A `Report` that goes nowhere."""


@contextmanager
def counted_progress(doing: str) -> Iterator[Report]:
    """Reports what is `doing` and how long it will take, once it has taken over two seconds."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(doing, total=None)
            yield lambda done, expected: bar.update(task, completed=done, total=expected)
    else:
        yield _lines(doing, time.monotonic)


def _lines(doing: str, clock: Callable[[], float]) -> Report:
    started = clock()
    next_line = started + PATIENCE_S

    def report(done: int, expected: int) -> None:
        nonlocal next_line
        now = clock()
        if now < next_line or not 0 < done < expected:
            return
        left = (now - started) / done * (expected - done)
        print(f"{doing}: {done} of {expected} runs, about {left:.0f} s left", file=sys.stderr, flush=True)
        next_line = now + BETWEEN_LINES_S

    return report
