"""The small bursts that begin every run of a Program: a yardstick, as in a round of the microbenchmark, and a warm-up."""

from __future__ import annotations

import numpy as np

from ..centre import centre
from . import lane
from .bench import Bench, Steps
from .microbenchmark import PACE_LINES, REST_NS

APART_NS = 1.1 * REST_NS
LEAD_NS = APART_NS * (len(PACE_LINES) + 1)
"""From the common start to the Program: as long after the last small burst as that is after the one before."""


def small_bursts(bench: Bench) -> Steps:
    """The steps [2 * bursts, 4]."""
    steps = np.zeros((2 * len(PACE_LINES), 4), dtype=np.int64)
    steps[::2, 0], steps[::2, 1] = lane.AT, bench.clock.ticks(APART_NS) * (1 + np.arange(len(PACE_LINES)))
    steps[1::2, 0], steps[1::2, 1] = lane.STORE, PACE_LINES
    return steps


def pace_ns_of(bench: Bench, stamps_by_lane: list[Steps]) -> float:
    """What the small bursts took in a run that began with them, from the times noted by lane; the mean over lanes."""
    took = [centre(np.diff(stamps)[1 : 2 * len(PACE_LINES) : 2]) for stamps in stamps_by_lane]
    return bench.clock.ns(float(np.mean(took)) - bench.costs.store_ticks)
