"""Ticks of the time-stamp counter in nanoseconds, what reading it costs, and whether the core runs steadily.

The counter goes at one rate whatever the clock of the core does (constant_tsc, cntvct), so it is compared with
`time.perf_counter` before and after a measurement; the clock of the core itself shows in how long a fixed chain of
shifts takes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from ..measuring import MeasurementError
from . import lane
from .cores import run_pinned

RATE_TOLERANCE = 2e-3
"""Two readings of the rate may differ by this fraction; beyond it the counter is no clock."""
WORK_TURNS = 5_000


class UnsteadyClockError(MeasurementError):
    """The counter of this computer cannot be used as a clock."""


@dataclass(frozen=True)
class Clock:
    """How ticks become time. `step_ticks` is the smallest step between two readings of the counter."""

    ticks_per_ns: float
    step_ticks: int

    def ns(self, ticks: float) -> float:
        return ticks / self.ticks_per_ns

    def ticks(self, ns: float) -> int:
        return round(ns * self.ticks_per_ns)


def measure_rate(seconds: float = 0.05) -> float:
    """Ticks per nanosecond. Both clocks are read close together a few times at each end, and the closest pair is used."""
    begun = _together()
    time.sleep(seconds)
    ended = _together()
    return (ended[1] - begun[1]) / (ended[0] - begun[0])


def measure_clock(core: int, seconds: float = 0.05) -> Clock:
    """The clock as `core` sees it. Raises `UnsteadyClockError` if two measurements of its rate differ."""
    rates = [measure_rate(seconds), measure_rate(seconds)]
    check_rates(*rates)
    rate = float(np.mean(rates))
    [(_, step)] = run_pinned([lambda: lane.watch_counter(round(1e6 * rate), round(1e3 * rate))], [core])
    return Clock(rate, int(step))


def check_rates(before: float, after: float) -> None:
    """Raise `UnsteadyClockError` if two measured rates (ticks per ns) are not the same."""
    if not (before > 0 and after > 0 and abs(after / before - 1) <= RATE_TOLERANCE):
        raise UnsteadyClockError(
            f"the time-stamp counter ran at {before:.4f} and then at {after:.4f} ticks per ns: it is no clock here "
            f"(allowed: {100 * RATE_TOLERANCE:.1f} % apart)"
        )


def core_speed(core: int) -> float:
    """Ticks that a fixed piece of work takes on a core, the least of several tries: low is fast."""
    [tries] = run_pinned([lambda: [lane.timed_work(WORK_TURNS, 1 + i)[0] for i in range(15)]], [core])
    return float(min(tries))


def lost_share(core: int, clock: Clock, ns: float = 5e6, pause_ns: float = 500.0) -> float:
    """Share of the time in which something else runs on a core: pauses between two readings of the counter."""
    [(lost, _)] = run_pinned([lambda: lane.watch_counter(clock.ticks(ns), clock.ticks(pause_ns))], [core])
    return float(lost) / clock.ticks(ns)


def _together() -> tuple[float, int]:
    """`perf_counter` in ns and the counter, read close together."""
    pairs = []
    for _ in range(9):
        before = time.perf_counter_ns()
        ticks = lane.ticks()
        after = time.perf_counter_ns()
        pairs.append((after - before, (before + after) / 2, ticks))
    _, ns, ticks = min(pairs)
    return ns, ticks
