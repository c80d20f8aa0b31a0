"""The costs of a fused kernel put into its Program: what a local-store run of the same kernel took, op by op.

Then a simulation of that Program predicts everything that the control does not have: the stall of remote stores, and the
waits that follow from it. Nothing is fitted to the run that is predicted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...sim import program as p
from ...sim.program import Program
from ...sim.units import PS_PER_US

if TYPE_CHECKING:
    import pandas as pd

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
