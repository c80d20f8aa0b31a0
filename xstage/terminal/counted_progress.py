"""How far a row of runs is, on standard error: a bar for a terminal, a line now and then for a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from .clock import BETWEEN_LINES_S, PATIENCE_S, elapsed

LEAST_SEEN_S = 1.0  # a rate over less time is that of a few runs, which other processes may have held up


class Report(Protocol):
    """Called with the runs done and the runs expected in all, which may still change.

    `share` is the part of all work that is done, where runs differ so much that their number does not tell.
    """

    def __call__(self, done: int, expected: int, share: float | None = None) -> None: ...


def unreported(done: int, expected: int, share: float | None = None) -> None:
    """A `Report` that goes nowhere."""


@contextmanager
def counted_progress(doing: str) -> Iterator[Report]:
    """Reports what is `doing` and how long it will take, once it has taken over two seconds."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[runs]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(doing, total=None, runs="")

            def report(done: int, expected: int, share: float | None = None) -> None:
                work = done if share is None else share * expected
                bar.update(task, completed=work, total=expected, runs=f"{done}/{expected}")

            yield report
    else:
        lines = _lines(doing, time.monotonic)
        with elapsed(f"{doing}, first run") as first_is_over:

            def report(done: int, expected: int, share: float | None = None) -> None:
                if done > 0:
                    first_is_over()
                lines(done, expected, share)

            yield report


def _lines(doing: str, clock: Callable[[], float]) -> Report:
    """A line after two seconds, and every ten once it has an estimate. That goes by the rate since the first run ended,
    over a second or more: before that, processes start and code is compiled or loaded."""
    next_line = clock() + PATIENCE_S
    first: tuple[float, float] | None = None

    def report(done: int, expected: int, share: float | None = None) -> None:
        nonlocal next_line, first
        now = clock()
        work = done if share is None else share * expected
        if done > 0 and first is None:
            first = now, work
        if first is None or now < next_line or done >= expected:
            return
        began, before = first
        known = work > before and now - began >= LEAST_SEEN_S
        left = f", about {(now - began) / (work - before) * (expected - work):.0f} s left" if known else ""
        print(f"{doing}: {done} of {expected} runs{left}", file=sys.stderr, flush=True)
        next_line = now + (BETWEEN_LINES_S if known else PATIENCE_S)

    return report
