"""Programs that calibration never saw: trains whose burst sizes and gaps change by phase, and from burst to burst.

Which Programs are drawn depends on the simulated machine alone, never on a measured time. Half of them are to stall for more
than a fifth of their simulated issue time, so that errors in stall can show; a Program of the kind that is no longer needed
is drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..sim.execute import simulate
from ..sim.machine import Machine
from ..sim.outcome import OP_OF_TASK_WAIT
from ..sim.program import STORE, Program
from ..sim.trace import Trace
from .compare import STALLED_SHARE
from .cpu.architecture import LINE_BYTES
from .trains import Phases, in_lines, train

GAPS_NS = (60.0, 1000.0)
"""Range of gaps. Below it, noting the time takes up most of the gap."""
SPREAD = (0.75, 1.33)
"""Factors by which sizes and gaps vary within a phase."""
MOST_DRAWS = 50
"""Draws for each Program wanted; a machine on which nothing stalls yields fewer with stall."""


@dataclass(frozen=True)
class Bounds:
    """Range of burst sizes, bytes a producer, and of the gaps of phases."""

    least_bytes: int
    most_bytes: int
    gaps_ns: tuple[float, float] = GAPS_NS


def bounds_of(knee_bytes: float, least_gap_ns: float = 0.0) -> Bounds:
    """From a quarter of the knee to three knees. No gap is shorter than the hardware can make one (`least_gap_ns`)."""
    gaps = max(GAPS_NS[0], least_gap_ns / SPREAD[0]), max(GAPS_NS[1], 4 * least_gap_ns / SPREAD[0])
    return Bounds(in_lines(knee_bytes / 4, LINE_BYTES), in_lines(3 * knee_bytes, LINE_BYTES), gaps)


def unseen_traces(
    machine: Machine,
    producers: int,
    count: int,
    bounds: Bounds,
    rng: np.random.Generator,
    with_stall: int | None = None,
) -> list[Trace]:
    """`count` simulated Programs with full traces, `with_stall` of them (default: half) with stall as far as they can be
    found."""

    def drawn() -> Trace:
        return simulate(draw(machine, producers, bounds, rng), machine.fabric(), trace="full")

    return half_with_stall(count, drawn, MOST_DRAWS, with_stall=with_stall)


def half_with_stall(
    count: int,
    draw: Callable[[], Trace],
    most_draws: int,
    surely: float = STALLED_SHARE,
    with_stall: int | None = None,
) -> list[Trace]:
    """`count` of what `draw` gives, called up to `most_draws` times for each. Half of them (or as many as `with_stall` says)
    stall for more than `surely` of their issue time, the others for no more than `STALLED_SHARE`; where such cannot be
    found, others take their places."""
    wanted = (count + 1) // 2 if with_stall is None else min(count, max(0, with_stall))
    stalled: list[Trace] = []
    without: list[Trace] = []
    spare: list[Trace] = []
    for _ in range(most_draws * count):
        if len(stalled) + len(without) == count:
            break
        trace = draw()
        share = stalled_share(trace)
        if share > surely and len(stalled) < wanted:
            stalled.append(trace)
        elif share <= STALLED_SHARE and len(without) < count - wanted:
            without.append(trace)
        else:
            spare.append(trace)
    return [*stalled, *without, *spare][:count]


def draw(machine: Machine, producers: int, bounds: Bounds, rng: np.random.Generator) -> Program:
    """One Program: two to four phases of 3 to 12 bursts, log-uniform in size and gap, which vary by a third within a phase.

    All producers run the same phases; they start together, and their bursts drift apart.
    """
    sizes, gaps = [], []
    for _ in range(int(rng.integers(2, 5))):
        bursts = int(rng.integers(3, 13))
        size = np.exp(rng.uniform(np.log(bounds.least_bytes), np.log(bounds.most_bytes)))
        gap = np.exp(rng.uniform(*np.log(bounds.gaps_ns)))
        sizes += [in_lines(size * factor, LINE_BYTES) for factor in rng.uniform(*SPREAD, bursts)]
        gaps += [round(1000 * gap * factor) for factor in rng.uniform(*SPREAD, bursts)]
    return train(Phases(sizes, gaps), producers, machine.issue_time_ps)


def stalled_share(trace: Trace, left_out: Sequence[int] = ()) -> float:
    """Share of the issue time of all stores that is stall; ops `left_out` do not count as stores."""
    is_store, records = trace.program.ops["kind"] == STORE, trace.outcome.op_records
    is_store[list(left_out)] = False
    rows = records[(records["op"] != OP_OF_TASK_WAIT) & is_store[records["op"]]]
    return float(rows["stall_ps"].sum() / max(1, (rows["end_ps"] - rows["start_ps"]).sum()))
