"""Runs of a kernel at the clock of a GPU at work. Needs nothing.

An idle GPU goes at a fraction of the clock that it states, and needs some milliseconds of work to leave it. It falls back
while results are written or another process asks for its state.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Ran = TypeVar("Ran")
Noted = TypeVar("Noted")

STEADY_CLOCK = 0.01
"""By how much, as a share, the SM clocks of runs may differ."""
LEAST_OF_STATED = 0.5
"""Of the clock that a GPU states, from which it counts as at work."""
MOST_RUNS, LONGEST_S = 50, 0.5
"""How often and how long a kernel runs at most until its clock is steady."""


def until_steady(
    run: Callable[[], Ran],
    clock_of: Callable[[Ran], float],
    note: Callable[[Ran], Noted],
    stated: float,
    wanted: int = 2,
) -> tuple[list[Noted], bool]:
    """`note` of `wanted` runs in a row at a steady clock, and whether it was: if not after `MOST_RUNS`, or in time, any
    count.

    `clock_of` tells the SM clock of what `run` came to, in units of `stated`. Of a run at an idle clock nothing is noted,
    so that the GPU hardly pauses.
    """
    begun, number, is_over = time.perf_counter(), 0, False
    noted, clocks = list[Noted](), list[float]()
    while len(noted) < wanted:
        ran = run()
        number += 1
        clock = clock_of(ran)
        is_over = is_over or number > MOST_RUNS - wanted or time.perf_counter() - begun > LONGEST_S
        is_idle = clock < LEAST_OF_STATED * stated
        has_moved = max([clock, *clocks]) > min([clock, *clocks]) * (1 + STEADY_CLOCK)
        if not is_over and (is_idle or has_moved):
            noted, clocks = [], []
        if is_over or not is_idle:
            noted, clocks = [*noted, note(ran)], [*clocks, clock]
    return noted, not is_over
