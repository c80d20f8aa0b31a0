"""Programs that calibration never saw: trains whose burst sizes and gaps change by phase, and from burst to burst.

Which Programs are drawn depends on the simulated machine alone, never on a measured time. Half of them are to stall for more
than a fifth of their simulated issue time, so that errors in stall can show; a Program of the kind that is no longer needed
is drawn again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..sim.execute import simulate
from ..sim.machine import Machine
from ..sim.outcome import OP_OF_TASK_WAIT
from ..sim.program import STORE, Program
from ..sim.trace import Trace
from .cpu.architecture import LINE_BYTES
from .trains import SPREAD, draw_phases, half_with_stall, in_lines, train

GAPS_NS = (60.0, 1000.0)
"""Range of gaps. Below it, noting the time takes up most of the gap."""
MOST_BURSTS = 12
"""Of a phase."""
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

    return half_with_stall(count, drawn, stalled_share, MOST_DRAWS, with_stall=with_stall)


def draw(machine: Machine, producers: int, bounds: Bounds, rng: np.random.Generator) -> Program:
    """One Program, of phases as `draw_phases` draws them.

    All producers run the same phases; they start together, and their bursts drift apart.
    """
    phases = draw_phases(
        (bounds.least_bytes, bounds.most_bytes), bounds.gaps_ns, lambda _: 1000.0, MOST_BURSTS, LINE_BYTES, rng
    )
    return train(phases, producers, machine.issue_time_ps)


def stalled_share(trace: Trace, left_out: Sequence[int] = ()) -> float:
    """Share of the issue time of all stores that is stall; ops `left_out` do not count as stores."""
    is_store, records = trace.program.ops["kind"] == STORE, trace.outcome.op_records
    is_store[list(left_out)] = False
    rows = records[(records["op"] != OP_OF_TASK_WAIT) & is_store[records["op"]]]
    return float(rows["stall_ps"].sum() / max(1, (rows["end_ps"] - rows["start_ps"]).sum()))
