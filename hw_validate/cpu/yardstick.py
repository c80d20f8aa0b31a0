"""Small bursts before and after everything that is timed: was the core, meanwhile, as it usually is?

A core has more than one state. The two threads of an Intel core share its store buffer: while the other one runs, a thread
has half of it (Intel's optimisation manual calls it statically partitioned), so Q is half as large and a small burst that
fitted stalls. On a virtual computer that other thread may belong to another guest, and come and go every millisecond. Small
bursts tell, as they take over twice as long then. So they stand around each list of steps and each run of a Program, and it
counts only if those on both sides took as long as usual (`bench.Limits`).

They also make the loop that stores warm, for every rest of lines that its unrolled body leaves: without that, the first
bursts of a short list take up to 40 ns more than later ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..centre import centre
from . import lane
from .clock import Clock

Steps = np.ndarray[Any, np.dtype[np.int64]]

LINES_BEFORE = (60, 61, 62, 63, 64, 65, 66, 67) * 3
LINES_AFTER = LINES_BEFORE[:8]
REST_NS = 1_500.0
"""A gap after which the stage is empty, by a wide margin: a small burst drains in some 200 ns."""
APART_NS = 1.3 * REST_NS
LEAD_NS = APART_NS * (len(LINES_BEFORE) + 2)
"""From the common start to what is timed: longer after the last small burst than that is after the one before."""


def before(clock: Clock) -> Steps:
    """Small bursts at fixed times, on all lanes at once."""
    steps = np.zeros((2 * len(LINES_BEFORE), 4), dtype=np.int64)
    steps[::2, 0], steps[::2, 1] = lane.AT, clock.ticks(APART_NS) * (1 + np.arange(len(LINES_BEFORE)))
    steps[1::2, 0], steps[1::2, 1] = lane.STORE, LINES_BEFORE
    return steps


def after(clock: Clock) -> Steps:
    """Small bursts of a lane when it is done."""
    steps = np.zeros((2 * len(LINES_AFTER), 4), dtype=np.int64)
    steps[::2, 0], steps[::2, 1] = lane.SPIN, clock.ticks(REST_NS)
    steps[1::2, 0], steps[1::2, 1] = lane.STORE, LINES_AFTER
    return steps


def around(steps: Steps, clock: Clock) -> Steps:
    """`steps` between small bursts. They begin together on all lanes: their `AT` counts from then."""
    lead = clock.ticks(LEAD_NS)
    later = steps.copy()
    later[later[:, 0] == lane.AT, 1] += lead
    return np.concatenate([before(clock), [[lane.AT, lead, 0, 0]], later, after(clock)])


def between(stamps: Steps) -> Steps:
    """The times noted of the steps between small bursts, one more than steps."""
    return stamps[2 * len(LINES_BEFORE) + 1 : -2 * len(LINES_AFTER)]


def paces_ticks(stamps: Steps) -> tuple[float, float]:
    """What the small bursts before and after took in the middle, noting the time included."""
    return pace_ticks(stamps[: 2 * len(LINES_BEFORE) + 1]), pace_ticks(stamps[-2 * len(LINES_AFTER) - 1 :])


def pace_ticks(stamps: Steps) -> float:
    """As `paces_ticks`, of the times noted in `before` or `after` alone."""
    return float(centre(np.diff(stamps)[1::2]))
