"""Trains with changing sizes and gaps, drawn for a stage that is known roughly. Needs NumPy alone.

What a bare node replays when nothing but NumPy and CuPy is there to calibrate with; unseen.py draws from the same phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...sim.burst_gap import XStage, issue_time, knee, stall
from ...sim.errors import InputError
from ...sim.program import Program
from ..compare import STALLED_SHARE
from ..trains import Phases, in_lines, train
from .noted import Noted, issue_ns
from .parts import LINE_BYTES

Array = np.ndarray[Any, np.dtype[Any]]
SIZES_IN_KNEES = {"busy": (0.25, 3.0), "calm": (0.1, 0.9)}
GAPS_IN_DRAINS = {"busy": (0.05, 2.0), "calm": (0.9, 4.0)}
"""Of the size drawn. Beyond one drain a train of bursts below the knee does not stall; where SMs issue much faster than the
link drains, hardly any other does not."""
MOST_BYTES = 8 << 20
SURELY_STALLED_SHARE = 0.3
"""What is drawn to stall does so with room to spare: the replay kernel makes every gap a little longer."""
MOST_DRAWS = 50
MADE_UP_ISSUE_KBS, MADE_UP_BYTES = 40e6, 4096.0
"""What an SM issues, and its part of Q, where neither is known; far from any limit of memory."""


def draw_phases(knee_bytes: float, producers: int, drain_kbs: float, rng: np.random.Generator) -> Phases:
    """Two to four phases of 3 to 8 bursts, busy or calm, log-uniform in size and gap, which vary by a third in a phase."""
    sizes, gaps = [], []
    kind = str(rng.choice(list(SIZES_IN_KNEES)))
    low, high = (min(MOST_BYTES, knee_bytes * factor) for factor in SIZES_IN_KNEES[kind])
    for _ in range(int(rng.integers(2, 5))):
        bursts = int(rng.integers(3, 9))
        size = np.exp(rng.uniform(np.log(low), np.log(high)))
        gap = producers * size * 1e9 / drain_kbs * np.exp(rng.uniform(*np.log(GAPS_IN_DRAINS[kind])))
        sizes += [in_lines(size * factor, LINE_BYTES) for factor in rng.uniform(0.75, 1.33, bursts)]
        gaps += [round(gap * factor) for factor in rng.uniform(0.75, 1.33, bursts)]
    return Phases(sizes, gaps)


def draw_by_law(
    stage: XStage, producers: int, count: int, rng: np.random.Generator, ranks: Sequence[int] = (1,)
) -> list[Program]:
    """`count` Programs, half of them with stall by the closed forms where such can be found. They take numbers of `ranks` in
    turn; ranks on one GPU share its stage, so they stall as one does.
    """
    at = float(knee(stage, producers))
    if not np.isfinite(at):
        raise InputError("never fill the stage, so there is no knee to draw around", field="producers", value=producers)
    wanted = {True: (count + 1) // 2, False: count // 2}
    drawn: dict[bool, list[Phases]] = {True: [], False: []}
    spare: list[Phases] = []
    for _ in range(MOST_DRAWS * count):
        if all(len(drawn[kind]) == wanted[kind] for kind in wanted):
            break
        phases = draw_phases(at, producers, float(stage.drain_kbs), rng)
        size, gap = np.array(phases.burst_bytes, dtype=float), np.array(phases.gaps_ps, dtype=float)
        # They start together, and drift apart only slowly.
        issued, stalled_ps = (law(stage, producers, size, gap, "synchronised") for law in (issue_time, stall))
        stalled = float(np.sum(stalled_ps) / np.sum(issued))
        kind = stalled > STALLED_SHARE
        is_clear = not kind or stalled > SURELY_STALLED_SHARE
        (drawn[kind] if is_clear and len(drawn[kind]) < wanted[kind] else spare).append(phases)
    chosen = [*drawn[True], *drawn[False], *spare][:count]

    def issue_ps(size: Array) -> Array:
        return np.asarray(np.round(stage.t0_ps + size * 1e9 / stage.issue_kbs), dtype=np.int64)

    return [train(phases, producers, issue_ps, ranks[i % len(ranks)]) for i, phases in enumerate(chosen)]


def rough_stage(noted: Noted, group: str = "isolated") -> XStage:
    """A first idea of the stage, from the slopes of the smallest and largest thirds of isolated bursts. Not a calibration.

    Raises `InputError` where these are one line: then there is no stage to be seen.
    """
    rows = noted.rows(group)
    producers = int(noted.table["producers"][rows[0]])
    each = noted.table["bytes"][rows].astype(float)
    times = np.array([issue_ns(noted, int(i)) for i in rows])
    sizes = np.unique(each)
    middle = np.array([np.median(times[each == size]) for size in sizes])
    third = max(3, len(sizes) // 3)
    slope_low, start = np.polyfit(sizes[:third], middle[:third], 1)
    slope_high, offset = np.polyfit(sizes[-third:], middle[-third:], 1, w=1 / middle[-third:])
    slope_low = max(float(slope_low), 1e-6)
    if slope_high < 1.25 * slope_low or offset >= start:
        raise InputError(
            "show no knee", field="isolated bursts", value=f"{slope_low:.3g} and {slope_high:.3g} ns a byte"
        )
    drain = producers / slope_high
    capacity = max(-offset * drain, 512.0 * producers)
    return XStage(max(0.0, 1000 * start), 1e6 / slope_low, 1e6 * drain, capacity / producers, capacity)


def made_up_stage(drain_gbs: float, producers: int) -> XStage:
    """A stage with that R and nothing else known, for Programs that have to be of some size."""
    return XStage(0.0, MADE_UP_ISSUE_KBS, 1e6 * drain_gbs, MADE_UP_BYTES, MADE_UP_BYTES * producers)
