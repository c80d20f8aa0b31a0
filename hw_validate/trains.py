"""Bursts one after the other as a Program: what cores and GPUs replay besides schedules, and how they are drawn. Needs NumPy
alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ..sim.program import COMPUTE, STORE, Program
from ..sim.program_builder import ProgramBuilder, Seat
from .compare import STALLED_SHARE

Array = np.ndarray[Any, np.dtype[Any]]
Drawn = TypeVar("Drawn")
SPREAD = (0.75, 1.33)
"""Factors by which sizes and gaps vary within a phase."""


@dataclass(frozen=True)
class Phases:
    """Bursts one after the other: bytes a producer, and the gap before each."""

    burst_bytes: list[int]
    gaps_ps: list[int]


def train(phases: Phases, producers: int, issue_ps: Callable[[Array], Array], ranks: int = 1) -> Program:
    """`producers` SMs, one lane each, store the bursts to another GPU. `issue_ps` gives T_iss0 of sizes in bytes.

    One rank stores to GPU 1; several have an equal part of the SMs each, and each stores to the next. SMs that do not divide
    are left out.
    """
    builder = ProgramBuilder(n_gpus=max(2, ranks))
    size = np.array(phases.burst_bytes, dtype=np.int64)
    each = producers // ranks
    bursts = np.tile(np.arange(len(size)), each)
    for rank in range(ranks):
        peer = (rank + 1) % builder.n_gpus
        rows = np.array([builder.destination({peer: int(one)}) for one in size])
        columns = {
            "target": np.stack([np.zeros_like(rows), rows], axis=1),
            "bytes": np.stack([np.zeros_like(size), size], axis=1),
            "duration_ps": np.stack([np.array(phases.gaps_ps), np.asarray(issue_ps(size), dtype=np.int64)], axis=1),
        }
        first = builder.ops(np.array([COMPUTE, STORE]), **columns)
        run = builder.runs(first + 2 * np.arange(len(size)), 2) + np.arange(len(size))
        tasks = builder.tasks(run[bursts], 1, phase="burst", m_block=bursts)
        queues = builder.queues(tasks + np.arange(len(bursts)), np.full(each, len(size)))
        plans = builder.private_plans(queues, each) + np.arange(each)
        builder.groups(gpu=rank, plan=plans, seats=[Seat("producer", sm=np.arange(each))])
    return builder.build(schedule="unseen train" if ranks == 1 else f"unseen train, {ranks} ranks")


def in_lines(size: float, line_bytes: int) -> int:
    """The nearest size in whole lines of `line_bytes`, at least one."""
    return line_bytes * max(1, round(size / line_bytes))


def draw_phases(
    sizes: tuple[float, float],
    gaps: tuple[float, float],
    gap_unit_ps: Callable[[float], float],
    most_bursts: int,
    line_bytes: int,
    rng: np.random.Generator,
) -> Phases:
    """Two to four phases of 3 to `most_bursts` bursts, log-uniform in size and gap, which vary by a third within a phase.

    `sizes` are in bytes, `gaps` multiples of what `gap_unit_ps` says of the size.
    """
    drawn = Phases([], [])
    for _ in range(int(rng.integers(2, 5))):
        bursts = int(rng.integers(3, most_bursts + 1))
        size = np.exp(rng.uniform(*np.log(sizes)))
        gap = gap_unit_ps(size) * np.exp(rng.uniform(*np.log(gaps)))
        drawn.burst_bytes.extend(in_lines(size * factor, line_bytes) for factor in rng.uniform(*SPREAD, bursts))
        drawn.gaps_ps.extend(round(gap * factor) for factor in rng.uniform(*SPREAD, bursts))
    return drawn


def half_with_stall(
    count: int,
    draw: Callable[[], Drawn],
    share: Callable[[Drawn], float],
    most_draws: int,
    surely: float = STALLED_SHARE,
    with_stall: int | None = None,
) -> list[Drawn]:
    """`count` of what `draw` gives, called up to `most_draws` times for each. Half of them (or as many as `with_stall` says)
    stall for more than `surely` of their issue time, which `share` tells, the others for no more than `STALLED_SHARE`; where
    such cannot be found, others take their places."""
    wanted = (count + 1) // 2 if with_stall is None else min(count, max(0, with_stall))
    stalled: list[Drawn] = []
    without: list[Drawn] = []
    spare: list[Drawn] = []
    for _ in range(most_draws * count):
        if len(stalled) + len(without) == count:
            break
        one = draw()
        stall = share(one)
        if stall > surely and len(stalled) < wanted:
            stalled.append(one)
        elif stall <= STALLED_SHARE and len(without) < count - wanted:
            without.append(one)
        else:
            spare.append(one)
    return [*stalled, *without, *spare][:count]
