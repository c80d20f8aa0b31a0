"""The fused kernel as measured against the same Program simulated, policy by policy.

The simulated Program has the costs of the control (fused_costs.py) and runs on a calibrated machine: stalls, and the waits
that follow from them, are predicted, never fitted to the runs that are judged. Several ranks on one GPU share its egress and
its Q (one_gpu.py); there the combine is left out, and with it the arrivals that it waits for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim import program as p
from ...sim.errors import InputError
from ...sim.execute import simulate
from ...sim.program import Program
from ...sim.program_check import expand
from .fused_costs import with_measured_costs
from .fused_times import summary
from .one_gpu import folded, rank_of_task

if TYPE_CHECKING:
    import pandas as pd

    from ...sim.machine import Machine

JUDGED = ("makespan_us", "span_us", "mma_stall_us")


@dataclass(frozen=True)
class Compared:
    """One policy: what `fused_times.summary` says of the measured run, of its control, and of the simulation, in us."""

    policy: str
    measured: Mapping[str, float]
    control: Mapping[str, float]
    simulated: Mapping[str, float]

    def error_pct(self, name: str) -> float:
        """100 * (simulated - measured) / measured; of a stall that was not measured, nan or infinite."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(100 * (np.float64(self.simulated[name]) - self.measured[name]) / self.measured[name])

    def as_dict(self) -> dict[str, Any]:
        sides = {"measured": self.measured, "control": self.control, "simulated": self.simulated}
        errors = {name: self.error_pct(name) for name in JUDGED}
        return {"policy": self.policy} | {side: dict(told) for side, told in sides.items()} | {"error_pct": errors}


def predict(program: Program, control: pd.DataFrame, machine: Machine, transport: str) -> pd.DataFrame:
    """The op table of the Program as it should run on `machine`, which was calibrated on that transport.

    `control` is the op table of a run of the same Program on `local`.
    """
    made = with_measured_costs(program, control)
    if transport != "peer":
        made = folded(without_arrivals(made), int(made.lanes["sm"].max()) + 1)
    return simulate(made, machine.fabric(made.n_gpus), trace="full").ops()


def without_arrivals(program: Program) -> Program:
    """The Program without what ranks tell each other: nobody waits for returned rows to arrive, or for another rank at a
    barrier. Only then can ranks on one GPU be folded into one (one_gpu.py).

    Raises `InputError` if tasks are guarded by what other ranks do.
    """
    ops, home = program.ops.copy(), program.counters["home"]
    kind, rank = ops["kind"], _rank_of_op(program)
    counted = ops["counter"] >= 0
    stores = (kind == p.STORE) & counted
    row = program.destinations[ops["target"][stores]]
    owner, share = expand(row["first"], row["n_shares"])
    arrivals = ops["counter"][stores][owner] + ops["stride"][stores][owner] * program.shares["gpu"][share]
    crosses = (kind == p.SIGNAL) & counted & (home[np.maximum(ops["counter"], 0)] != rank)
    lost = np.zeros(len(program.counters), dtype=np.int64)
    np.add.at(lost, ops["counter"][crosses], ops["count"][crosses])
    never = np.zeros(len(program.counters), dtype=bool)
    never[arrivals] = True
    waits = (kind == p.WAIT) & counted
    guards = program.tasks["guard_counter"]
    touched = never | (lost > 0)
    if touched[guards[guards >= 0]].any():
        raise InputError("guard tasks by what other ranks do, which one GPU cannot show", field="program")
    counter = np.maximum(ops["counter"], 0)
    left = np.where(never[counter], 0, np.maximum(0, ops["count"] - lost[counter]))
    ops["count"] = np.where(waits, left, ops["count"])
    ops["counter"][stores], ops["stride"][stores] = p.NO_COUNTER, 0
    for name, value in (("kind", p.COMPUTE), ("counter", p.NO_COUNTER), ("count", 0), ("duration_ps", 0)):
        ops[name][crosses] = value
    return replace(program, ops=ops)


def _rank_of_op(program: Program) -> Any:
    """The rank that runs each op, [ops]; -1 for none."""
    rank = rank_of_task(program)
    owner, run = expand(program.tasks["first_run"], program.tasks["n_runs"])
    of_run, op = expand(program.runs["first_op"][run], program.runs["n_ops"][run])
    found = np.full(len(program.ops), -1, dtype=np.int64)
    found[op] = rank[owner][of_run]
    return found


def compared(
    policy: str, program: Program, far: pd.DataFrame, control: pd.DataFrame, machine: Machine, transport: str
) -> Compared:
    """`far` and `control` are op tables of runs of the Program, see `fused_run.measure`."""
    simulated = predict(program, control, machine, transport)
    return Compared(policy, summary(far), summary(control), summary(simulated))


def ranked_alike(rows: list[Compared], noise_pct: float = 1.0) -> bool:
    """Whether makespans come in the same order, for every pair of policies that differ by more than the noise."""
    for one in rows:
        for other in rows:
            ratio = one.measured["makespan_us"] / other.measured["makespan_us"]
            if ratio > 1 + noise_pct / 100 and one.simulated["makespan_us"] <= other.simulated["makespan_us"]:
                return False
    return True
