"""Programs that calibration never saw, for GPUs: trains on all producing SMs whose sizes and gaps change as they go.

As hw_validate/unseen.py draws them for a core, but with gaps in proportion to the time that a burst takes to drain: behind
a PCIe link that is tens of microseconds, behind NVLink a few. Half of them are to stall, as far as such can be found. Which
are drawn depends on the machine and the seed alone, never on a measured time.
"""

from __future__ import annotations

import numpy as np

from ...sim.burst_gap import knee
from ...sim.errors import InputError
from ...sim.execute import simulate
from ...sim.machine import Machine
from ...sim.program import Program
from ..compare import STALLED_SHARE
from ..unseen import stalled_share
from .trains import SURELY_STALLED_SHARE, draw_phases, train

MOST_DRAWS = 20
"""Draws for each Program wanted; a machine on which nothing stalls yields fewer with stall."""


def unseen_programs(machine: Machine, producers: int, count: int, rng: np.random.Generator) -> list[Program]:
    """`count` Programs for `producers` SMs of GPU 0 that store to GPU 1, half of them with stall where possible.

    Raises `InputError` if so few producers never fill the stage.
    """
    at = float(knee(machine.x_stage(), producers))
    if not np.isfinite(at):
        raise InputError("never fill the stage, so there is no knee to draw around", field="producers", value=producers)
    wanted = (count + 1) // 2
    with_stall: list[Program] = []
    without: list[Program] = []
    spare: list[Program] = []
    for _ in range(MOST_DRAWS * count):
        if len(with_stall) + len(without) == count:
            break
        program = train(draw_phases(at, producers, machine.drain_kbs(), rng), producers, machine.issue_time_ps)
        share = stalled_share(simulate(program, machine.fabric(), trace="full"))
        if share > SURELY_STALLED_SHARE and len(with_stall) < wanted:
            with_stall.append(program)
        elif share <= STALLED_SHARE and len(without) < count - wanted:
            without.append(program)
        else:
            spare.append(program)
    return [*with_stall, *without, *spare][:count]
