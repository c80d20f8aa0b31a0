"""Programs that calibration never saw, for GPUs: trains of one rank and of several, and MegaMoE and attention schedules.

As hw_validate/unseen.py draws trains for a core, but with gaps in proportion to the time that a burst takes to drain: behind
a PCIe link that is tens of microseconds, behind NVLink a few. Of each kind half are to stall, as far as such can be found.
Which are drawn depends on the machine and the seed alone, never on a measured time.

Where ranks are GPUs (transport `peer`), each has all SMs and a stage of its own; else ranks are ranges of one GPU's SMs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...sim.burst_gap import knee
from ...sim.errors import InputError
from ...sim.machine import Machine
from ...sim.program import Program
from ...sim.trace import Trace
from ..schedules import RANKS
from ..trains import half_with_stall, train
from ..unseen import stalled_share
from .ranks import simulated_ranks
from .schedules import schedule_program
from .trains import SURELY_STALLED_SHARE, draw_around_knee

MOST_DRAWS = 20
"""Draws for each Program wanted; a machine on which nothing stalls yields fewer with stall."""
OF_SEVERAL_RANKS, SCHEDULES = 0.25, 0.25
"""Share of trains between ranks, and of schedules; the rest are trains of one rank."""
TRAIN_RANKS = (2, 4)
LEAST_SMS = 2
"""Of a rank of a schedule: some have clusters of two SMs."""


@dataclass(frozen=True)
class Ranks:
    """Where ranks run: `most` of them, and on `peer` each on a GPU of its own with all producing SMs."""

    transport: str = "host"
    most: int = max(TRAIN_RANKS)

    def sms(self, producers: int, ranks: int) -> int:
        return producers if self.transport == "peer" else producers // ranks


def unseen_traces(machine: Machine, producers: int, count: int, rng: np.random.Generator, where: Ranks) -> list[Trace]:
    """`count` simulated Programs for `producers` SMs of each GPU, half of each kind with stall where possible.

    Raises `InputError` if so few producers never fill the stage.
    """
    at = float(knee(machine.x_stage(), producers))
    if not np.isfinite(at):
        raise InputError("never fill the stage, so there is no knee to draw around", field="producers", value=producers)

    def of_ranks(ranks: int) -> Trace:
        phases = draw_around_knee(at, producers, machine.drain_kbs(), rng)
        return simulated(train(phases, ranks * where.sms(producers, ranks), machine.issue_time_ps, ranks))

    def simulated(program: Program) -> Trace:
        return simulated_ranks(program, machine, where.transport)

    several = [n for n in TRAIN_RANKS if n <= where.most and where.sms(producers, n) >= 1]
    schedules = where.most >= RANKS and where.sms(producers, RANKS) >= LEAST_SMS
    n_schedules = round(SCHEDULES * count) if schedules else 0
    n_several = round(OF_SEVERAL_RANKS * count) if several else 0
    draws: list[tuple[int, Callable[[], Trace]]] = [
        (count - n_several - n_schedules, lambda: of_ranks(1)),
        (n_several, lambda: of_ranks(int(rng.choice(several)))),
        (n_schedules, lambda: simulated(schedule_program(machine, where.sms(producers, RANKS), rng))),
    ]
    return [
        trace
        for wanted, draw in draws
        for trace in half_with_stall(wanted, draw, stalled_share, MOST_DRAWS, SURELY_STALLED_SHARE)
    ]
