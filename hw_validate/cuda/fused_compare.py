"""The fused kernel as measured against the same Program simulated, policy by policy.

The simulated Program has the costs of the control (fused_costs.py) and runs on a calibrated machine: stalls, and the waits
that follow from them, are predicted, never fitted to the runs that are judged. Several ranks on one GPU share its egress and
its Q (ranks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim.program import Program
from .fused_costs import measured_pauses, with_measured_costs
from .ranks import simulated_ranks

if TYPE_CHECKING:
    import pandas as pd

    from ...sim.machine import Machine

JUDGED = (
    *("makespan_us", "span_us", "span_p95_us", "stores_total_us", "mma_stall_us"),
    *("pull_us", "mma_inputs_us"),  # of MegaMoE: what holds up loads, and the tiles that wait for them
)


@dataclass(frozen=True)
class Compared:
    """One policy: what a summary of fused_times.py says of the measured run, its control, and the simulation, in us."""

    policy: str
    measured: Mapping[str, float]
    control: Mapping[str, float]
    simulated: Mapping[str, float]

    def error_pct(self, name: str) -> float:
        """100 * (simulated - measured) / measured; of what was measured as 0, nan or infinite."""
        return _error_pct(self.simulated[name], self.measured[name])

    def stall_us(self) -> dict[str, float]:
        """What the stores of tiles took beyond T_iss0, which the control has alone: measured, simulated, error in percent.

        Noise of the control may leave it a little below 0. Where nothing stalls, see how small both are next to the stores
        of the control: the error is then that of noise.
        """
        issued = self.control["stores_total_us"]
        measured, simulated = (side["stores_total_us"] - issued for side in (self.measured, self.simulated))
        return {"measured": measured, "simulated": simulated, "error_pct": _error_pct(simulated, measured)}

    def speedup(self, baseline: Compared) -> dict[str, float]:
        """Makespan of `baseline` over that of this policy, measured and simulated."""
        sides = {"measured": (baseline.measured, self.measured), "simulated": (baseline.simulated, self.simulated)}
        return {side: slow["makespan_us"] / fast["makespan_us"] for side, (slow, fast) in sides.items()}

    def as_dict(self) -> dict[str, Any]:
        sides = {"measured": self.measured, "control": self.control, "simulated": self.simulated}
        errors = {name: self.error_pct(name) for name in JUDGED if name in self.measured}
        told = {side: dict(numbers) for side, numbers in sides.items()}
        return {"policy": self.policy, **told, "stall_us": self.stall_us(), "error_pct": errors}


def predict(program: Program, control: pd.DataFrame, machine: Machine, transport: str) -> pd.DataFrame:
    """The op table of the Program as it should run on `machine`, which was calibrated on that transport.

    `control` is the op table of a run of the same Program with all memory on the GPU itself.
    """
    pauses = measured_pauses(program, control)
    costed = pauses.put_into(with_measured_costs(program, control))
    return pauses.taken_out_of(simulated_ranks(costed, machine, transport).ops())


def compared(
    policy: str,
    program: Program,
    far: pd.DataFrame,
    control: pd.DataFrame,
    machine: Machine,
    transport: str,
    summary: Callable[[pd.DataFrame], Mapping[str, float]],
) -> Compared:
    """`far` and `control` are op tables of runs of the Program, see `fused_run.measure`; `summary` is of fused_times.py."""
    simulated = predict(program, control, machine, transport)
    return Compared(policy, summary(far), summary(control), summary(simulated))


def _error_pct(simulated: float, measured: float) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(100 * (np.float64(simulated) - measured) / measured)


def ranked_alike(rows: list[Compared], noise_pct: float = 1.0) -> bool:
    """Whether makespans come in the same order, for every pair of policies that differ by more than the noise."""
    for one in rows:
        for other in rows:
            ratio = one.measured["makespan_us"] / other.measured["makespan_us"]
            if ratio > 1 + noise_pct / 100 and one.simulated["makespan_us"] <= other.simulated["makespan_us"]:
                return False
    return True
