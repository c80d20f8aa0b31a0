"""Bursts one after the other as a Program: what cores and GPUs replay besides schedules. Needs NumPy alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..sim.program import COMPUTE, STORE, Program
from ..sim.program_builder import ProgramBuilder, Seat

Array = np.ndarray[Any, np.dtype[Any]]


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
