"""What the fused kernels (kernels/megamoe.cu, kernels/attention_a2a.cu) add to a lowered Program alike: their warps, and
which ops are whose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ...sim.errors import InputError, ProgramError
from ...sim.program import Program
from ...sim.program_index import expand
from .job import Array
from .lane_tables import WARP
from .lower import Lowered, divide_shared

JOINT = 8
"""Flag of an op that all threads of its lane do."""


def with_warps(
    program: Program, lowered: Lowered, warps: Mapping[str, int], most_warps: int, work_first: int, total: int
) -> Lowered:
    """The same with warps by role, `total` bytes of shared memory, and records in what the interpreter leaves of the first
    `work_first` of them. All lanes start at once, because the launch is real.

    Raises `InputError` if an SM would have more than `most_warps`, or its lanes do not fit, `ProgramError` if ranks start at
    different times or a group spans SMs.
    """
    if not lowered.tables["groups"]["is_in_shared"].all():
        raise ProgramError("the fused kernels have no groups that span SMs")
    if len(np.unique(program.lanes["start_ps"][program.groups["first_lane"]])) > 1:
        raise ProgramError("the fused kernels start all ranks at once")
    lanes, ctas = lowered.tables["lanes"].copy(), lowered.tables["ctas"].copy()
    by_role = np.array([warps[role] for role in program.roles], dtype=np.int64)
    lanes["start_ticks"] = 0
    lanes["n_warps"] = by_role[program.lanes["role"][lanes["number"]]]
    before = np.cumsum(lanes["n_warps"]) - lanes["n_warps"]
    lanes["first_warp"] = before - np.repeat(before[ctas["first_lane"]], ctas["n_lanes"])
    n_warps = int(np.add.reduceat(lanes["n_warps"], ctas["first_lane"]).max()) + 1
    if n_warps > most_warps:
        raise InputError("are too many for an SM", field="warps", value=n_warps, allowed=f"up to {most_warps}")
    divide_shared(ctas, n_warps * WARP, work_first)
    tables = lowered.tables | {"lanes": lanes, "ctas": ctas}
    return replace(lowered, tables=tables, n_threads=n_warps * WARP, shared_bytes=total, store_slice=0, load_slice=0)


def ops_of(program: Program, phase: str, seat: int) -> tuple[Array, Array]:
    """(run, op) of every op of the distinct runs that the tasks of a phase have for a seat; runs are counted from 0."""
    if phase not in program.phases:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    tasks = program.tasks[program.tasks["phase"] == program.phases.index(phase)]
    tasks = tasks[tasks["n_runs"] > seat]
    runs = program.runs[tasks["first_run"] + seat]
    runs = np.unique(runs)
    return expand(runs["first_op"], runs["n_ops"])
