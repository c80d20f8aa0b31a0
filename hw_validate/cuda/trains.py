"""Trains with changing sizes and gaps, drawn for a stage that is known roughly. Needs NumPy alone.

What a bare node replays when nothing but NumPy and CuPy is there to calibrate with; unseen.py draws from the same phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...sim.burst_gap import XStage, issue_time, knee, stall
from ...sim.calibrate import LEAST_SLOPE_RATIO
from ...sim.errors import InputError
from ...sim.program import Program
from ..trains import Phases, draw_phases, half_with_stall, train
from .noted import Noted, outer_lines
from .parts import LINE_BYTES

Array = np.ndarray[Any, np.dtype[Any]]
SIZES_IN_KNEES = {"busy": (0.25, 3.0), "calm": (0.1, 0.9)}
GAPS_IN_DRAINS = {"busy": (0.05, 2.0), "calm": (0.9, 4.0)}
"""Of the size drawn. Beyond one drain a train of bursts below the knee does not stall; where SMs issue much faster than the
link drains, hardly any other does not."""
MOST_BYTES = 8 << 20
SURELY_STALLED_SHARE = 0.3
"""What is drawn to stall does so with room to spare: the replay kernel makes every gap a little longer."""
MOST_DRAWS, MOST_BURSTS = 50, 8
MADE_UP_ISSUE_KBS, MADE_UP_BYTES = 40e6, 4096.0
"""What an SM issues, and its part of Q, where neither is known; far from any limit of memory."""


def draw_around_knee(knee_bytes: float, producers: int, drain_kbs: float, rng: np.random.Generator) -> Phases:
    """Phases that are busy or calm: sizes in proportion to the knee, gaps to the time that a size takes to drain."""
    kind = str(rng.choice(list(SIZES_IN_KNEES)))
    low, high = (min(MOST_BYTES, knee_bytes * factor) for factor in SIZES_IN_KNEES[kind])

    def drain_ps(size: float) -> float:
        return producers * size * 1e9 / drain_kbs

    return draw_phases((low, high), GAPS_IN_DRAINS[kind], drain_ps, MOST_BURSTS, LINE_BYTES, rng)


def draw_by_law(
    stage: XStage, producers: int, count: int, rng: np.random.Generator, ranks: Sequence[int] = (1,)
) -> list[Program]:
    """`count` Programs, half of them with stall by the closed forms where such can be found. They take numbers of `ranks` in
    turn; ranks on one GPU share its stage, so they stall as one does.
    """
    at = float(knee(stage, producers))
    if not np.isfinite(at):
        raise InputError("never fill the stage, so there is no knee to draw around", field="producers", value=producers)

    def drawn() -> Phases:
        return draw_around_knee(at, producers, float(stage.drain_kbs), rng)

    def share(phases: Phases) -> float:
        """They start together, and drift apart only slowly."""
        size, gap = np.array(phases.burst_bytes, dtype=float), np.array(phases.gaps_ps, dtype=float)
        issued, stalled = (law(stage, producers, size, gap, "synchronised") for law in (issue_time, stall))
        return float(np.sum(stalled) / np.sum(issued))

    chosen = half_with_stall(count, drawn, share, MOST_DRAWS, SURELY_STALLED_SHARE)

    def issue_ps(size: Array) -> Array:
        return np.asarray(np.round(stage.t0_ps + size * 1e9 / stage.issue_kbs), dtype=np.int64)

    return [train(phases, producers, issue_ps, ranks[i % len(ranks)]) for i, phases in enumerate(chosen)]


def rough_stage(noted: Noted) -> XStage:
    """A first idea of the stage, from the smallest and the largest isolated bursts. Not a calibration.

    Raises `InputError` where their times are on one line: then there is no stage to be seen.
    """
    producers = int(noted.table["producers"][noted.rows("isolated")[0]])
    (slope_low, start), (slope_high, offset) = outer_lines(noted)
    if slope_high < LEAST_SLOPE_RATIO * slope_low or offset >= start:
        raise InputError(
            "show no knee", field="isolated bursts", value=f"{slope_low:.3g} and {slope_high:.3g} ns a byte"
        )
    drain = producers / slope_high
    capacity = max(-offset * drain, 512.0 * producers)
    return XStage(max(0.0, 1000 * start), 1e6 / slope_low, 1e6 * drain, capacity / producers, capacity)


def made_up_stage(drain_gbs: float, producers: int) -> XStage:
    """A stage with that R and nothing else known, for Programs that have to be of some size."""
    return XStage(0.0, MADE_UP_ISSUE_KBS, 1e6 * drain_gbs, MADE_UP_BYTES, MADE_UP_BYTES * producers)
