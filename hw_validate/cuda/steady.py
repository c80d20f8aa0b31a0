"""Runs of a kernel at the clock of a GPU at work. Needs nothing.

An idle GPU goes at a fraction of the clock that it states, and needs some milliseconds of work to leave it. It falls back
while results are written or another process asks for its state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

Ran = TypeVar("Ran")
Noted = TypeVar("Noted")

STEADY_CLOCK = 0.01
"""By how much, as a share, the SM clocks of runs may differ."""
LEAST_OF_STATED = 0.5
"""Of the clock that a GPU states, from which it counts as at work."""
MOST_RUNS, LONGEST_S = 50, 0.5
"""How many runs are thrown away at most, and for how long, until the clock is steady."""
_LOW: WeakKeyDictionary[object, float] = WeakKeyDictionary()
"""By GPU, the low clock that all the waiting did not lift: it is capped, and nobody need wait for more again."""


def until_steady(
    run: Callable[[], Ran],
    clock_of: Callable[[Ran], float],
    note: Callable[[Ran], Noted],
    stated: float,
    wanted: int = 2,
    gpu: object = None,
) -> tuple[list[Noted], bool]:
    """`note` of `wanted` runs in a row, and whether their clock was steady, and not below `LEAST_OF_STATED`. Runs are thrown
    away until it is, or `MOST_RUNS` have been, or `LONGEST_S` are over: then any count.

    `clock_of` tells the SM clock of what `run` came to, in units of `stated`. Of a run at an idle clock nothing is noted,
    so that the GPU hardly pauses. `gpu` is what a clock that stays low is remembered of, as a share of `stated`, until a
    run is above it.
    """
    begun, thrown_away = time.perf_counter(), 0
    noted, clocks = list[Noted](), list[float]()
    while len(noted) < wanted:
        ran = run()
        clock = clock_of(ran)
        may_wait = thrown_away < MOST_RUNS and time.perf_counter() - begun <= LONGEST_S
        is_idle = clock < _least_share(gpu) * stated
        if may_wait and (is_idle or not _is_steady([*clocks, clock])):
            thrown_away += len(noted) + is_idle
            noted, clocks = [], []
        if not (may_wait and is_idle):
            noted, clocks = [*noted, note(ran)], [*clocks, clock]
    is_low = min(clocks) < LEAST_OF_STATED * stated
    if gpu is not None and is_low and _is_steady(clocks):
        _LOW[gpu] = min(clocks) / stated
    elif gpu is not None and not is_low:
        _LOW.pop(gpu, None)
    return noted, _is_steady(clocks) and not is_low


def _is_steady(clocks: Sequence[float]) -> bool:
    return max(clocks) <= min(clocks) * (1 + STEADY_CLOCK)


def _least_share(gpu: object) -> float:
    """From which share of the stated clock on a GPU counts as at work."""
    low = None if gpu is None else _LOW.get(gpu)
    return LEAST_OF_STATED if low is None else low * (1 - STEADY_CLOCK)
