"""Progress on standard error: a bar for a terminal, a line now and then for a log file, none in the first two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Protocol

PATIENCE_S = 2.0
BETWEEN_LINES_S = 10.0
LEAST_SEEN_S = 1.0  # a rate over less time is that of a few runs, which other processes may have held up


class Progress(Protocol):
    """Called with the runs done and the runs expected in all, which may still change.

    `share` is the part of all work that is done, where runs differ so much that their number does not tell.
    """

    def __call__(self, done: int, expected: int, share: float | None = None) -> None: ...


def silent(done: int, expected: int, share: float | None = None) -> None:
    """A `Progress` that is not shown."""


@contextmanager
def counted_progress(doing: str) -> Iterator[Progress]:
    """Shows the progress of a series of runs, and how long the rest will take."""
    if sys.stderr is None or not sys.stderr.isatty():
        lines = counted_lines(doing, time.monotonic)
        with elapsed(f"{doing}, first run") as first_is_over:

            def report(done: int, expected: int, share: float | None = None) -> None:
                if done > 0:
                    first_is_over()
                lines(done, expected, share)

            yield report
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[runs]}"), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(doing, total=None, runs="")

        def advance(done: int, expected: int, share: float | None = None) -> None:
            work = done if share is None else share * expected
            bars.update(task, completed=work, total=expected, runs=f"{done}/{expected}")

        yield advance


@contextmanager
def share_progress(doing: str) -> Iterator[Callable[[float], None]]:
    """Shows the progress of one run, which calls what this gives with the share that is done."""
    if sys.stderr is None or not sys.stderr.isatty():
        lines = share_lines(doing, time.monotonic)
        with elapsed(doing) as first_share_is_known:

            def report(share: float) -> None:
                if share > 0:
                    first_share_is_known()
                lines(share)

            yield report
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(doing, total=1.0)
        yield lambda share: bars.update(task, completed=share)


@contextmanager
def step_progress() -> Iterator[Callable[[str, float], None]]:
    """Shows the step that a measurement is at, and its share of the whole."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield step_lines(time.monotonic)
        return
    from rich.console import Console

    with Console(stderr=True).status("Starting") as status:
        yield lambda doing, share: status.update(_step(doing, share))


@contextmanager
def working(doing: str) -> Iterator[None]:
    """Shows that something is under way whose progress is not known."""
    if sys.stderr is None or not sys.stderr.isatty():
        with elapsed(doing):
            yield
        return
    from rich.console import Console

    with Console(stderr=True).status(doing):
        yield


@contextmanager
def elapsed(doing: str) -> Iterator[Callable[[], None]]:
    """Prints the elapsed time now and then, for work that cannot report its progress.

    That ends with the block, or when the function that it gives is called.
    """
    if sys.stderr is None:
        yield lambda: None
        return
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
        _print(f"{doing}: {told:.0f} s")
        pause = BETWEEN_LINES_S


class Lines:
    """Lines of a log: the first after two seconds, then one every ten unless asked otherwise."""

    def __init__(self, started: float):
        self.started = started
        self._next = started + PATIENCE_S

    def show(self, at: float, text: Callable[[], str], pause_s: float | None = None) -> None:
        """Print a line if one is due at this time; the next is due after `pause_s`."""
        if at >= self._next:
            _print(text())
            self._next = at + (BETWEEN_LINES_S if pause_s is None else pause_s)


def share_lines(doing: str, now: Callable[[], float]) -> Callable[[float], None]:
    """Lines with the time that one run has taken and still needs."""
    lines = Lines(now())

    def tell(share: float) -> None:
        if 0 < share < 1:
            at = now()
            took = at - lines.started
            left = took * (1 - share) / share
            lines.show(at, lambda: f"{doing}: {took:.0f} s, {share:.0%} done, about {left:.0f} s left")

    return tell


def counted_lines(doing: str, now: Callable[[], float]) -> Progress:
    """Lines with the runs that are done and the time that the rest needs. That goes by the rate since the first run ended,
    over a second or more: before that, processes start and code is compiled or loaded."""
    lines = Lines(now())
    first: tuple[float, float] | None = None

    def report(done: int, expected: int, share: float | None = None) -> None:
        nonlocal first
        at, work = now(), done if share is None else share * expected
        if done > 0 and first is None:
            first = at, work
        if first is None or done >= expected:
            return
        began, before = first
        known = work > before and at - began >= LEAST_SEEN_S
        left = f", about {(at - began) / (work - before) * (expected - work):.0f} s left" if known else ""
        lines.show(at, lambda: f"{doing}: {done} of {expected} runs{left}", BETWEEN_LINES_S if known else PATIENCE_S)

    return report


def step_lines(now: Callable[[], float]) -> Callable[[str, float], None]:
    """Lines with the step that is under way."""
    lines = Lines(now())
    return lambda doing, share: lines.show(now(), lambda: _step(doing, share))


def _step(doing: str, share: float) -> str:
    return f"{doing[:1].upper()}{doing[1:]}: {100 * share:.0f} %"


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
