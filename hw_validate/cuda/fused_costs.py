"""The costs of a fused kernel put into its Program: what a local-store run of the same kernel, the control, took.

    op            COMPUTE, STORE (its T_iss0) and SIGNAL last as long as in the control
    between ops   a lane claims a task, fetches its ops, notes times; it looks whether what it waits for is there, and gives
                  slots back: `Pauses` of the control

Then a simulation of that Program predicts everything that the control does not have: the stall of remote stores, and the
waits that follow from it. Nothing is fitted to the run that is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim import program as p
from ...sim.program import Program
from ...sim.units import PS_PER_US
from .fused_waits import reached_us

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, np.dtype[Any]]
_TIMED = (p.COMPUTE, p.STORE, p.SIGNAL)


def with_measured_costs(program: Program, control: pd.DataFrame) -> Program:
    """The same with the durations of COMPUTE, STORE (its T_iss0) and SIGNAL ops as `control` has them: the median over the
    times that an op ran. `control` is `measured_ops` of a run on the transport `local`; ops that it lacks keep theirs."""
    kinds = [p.KIND_NAMES[kind] for kind in _TIMED]
    mine = control[control["kind"].isin(kinds)]
    took = (mine["end_us"] - mine["start_us"]).groupby(mine["op"]).median()
    ops = program.ops.copy()
    ops["duration_ps"][took.index.to_numpy()] = (took.to_numpy() * PS_PER_US).round().clip(0)
    ops["duration_ps"][(ops["kind"] == p.STORE) & (ops["bytes"] == 0)] = 0
    return replace(program, ops=ops)


@dataclass(frozen=True, eq=False)
class Pauses:
    """[ops] in us, what a lane spends without waiting for anything and without a time of its own in the simulation: `before`
    an op, since the one before it, and `within` it."""

    before: Array
    within: Array

    def put_into(self, program: Program) -> Program:
        """The Program with a COMPUTE of that time before and after op i, which becomes op 3 i + 1."""
        ops, runs = np.repeat(program.ops, 3), program.runs.copy()
        for place, pause in ((0, self.before), (2, self.within)):
            ops[place::3] = np.zeros(1, ops.dtype)
            ops["kind"][place::3], ops["counter"][place::3] = p.COMPUTE, p.NO_COUNTER
            ops["duration_ps"][place::3] = np.rint(pause * PS_PER_US)
        runs["first_op"] *= 3
        runs["n_ops"] *= 3
        return replace(program, ops=ops, runs=runs)

    def taken_out_of(self, table: pd.DataFrame) -> pd.DataFrame:
        """The op table of a run with these pauses as one of the Program itself: ops last as long as what is within them."""
        table = table[(table["op"] < 0) | (table["op"] % 3 == 1)]  # below 0: a wait for a task
        op = table["op"].to_numpy() // 3
        within = np.where(op < 0, 0.0, self.within[op])
        return table.assign(op=op, end_us=table["end_us"] + within).reset_index(drop=True)


def measured_pauses(program: Program, control: pd.DataFrame) -> Pauses:
    """Those of the control, the median over the times that an op ran.

    Before the first op of a task a lane may wait for the guards, so its pause begins when they held. Within a WAIT it begins
    when what is waited for was there, within a RELEASE at once. When a load or a signal of another GPU arrived is not noted:
    the whole time of such a WAIT or guard counts as waiting. So does that of an ACQUIRE.

    The time from posting a signal to its arrival is charged to the op that waited for it in the control, whether or not it
    waits in the run that is judged. So a deviation of a few percent in a small Program says nothing about the stage.
    """
    rows = control[control["op"] >= 0].sort_values(["lane", "start_us", "end_us"], kind="stable")
    lane, task, op = (rows[name].to_numpy() for name in ("lane", "task", "op"))
    start, end, ops = rows["start_us"].to_numpy(), rows["end_us"].to_numpy(), program.ops[op]
    reached = reached_us(program, rows)
    is_new_lane = np.append(True, lane[1:] != lane[:-1])
    free = np.where(is_new_lane, program.lanes["start_ps"][lane] / PS_PER_US, np.append(0.0, end[:-1]))
    is_new_task = is_new_lane | np.append(True, task[1:] != task[:-1])
    guards = reached(program.tasks["guard_counter"][task], program.tasks["guard_count"][task]).max(axis=1)
    free = np.where(is_new_task, np.maximum(free, guards), free)
    there = np.where(ops["kind"] == p.RELEASE, start, end)
    waits = ops["kind"] == p.WAIT
    there[waits] = np.clip(reached(ops["counter"][waits], ops["count"][waits]), start[waits], end[waits])
    found = rows.assign(before=np.maximum(0.0, start - free), within=end - there).groupby("op")
    pauses = Pauses(np.zeros(len(program.ops)), np.zeros(len(program.ops)))
    for name, pause in (("before", pauses.before), ("within", pauses.within)):
        median = found[name].median()
        pause[median.index.to_numpy()] = median
    return pauses
